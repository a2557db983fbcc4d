"""Commands and events that cross the process boundary; imports no torch.

Frames are a 4-byte little-endian length and one msgpack message, at most ``MAX_FRAME_BYTES``.
Integer columns travel as the bytes of little-endian numpy arrays: one message per step for the
whole batch, never one per token. No pickle.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.inspect_messages import Looked, Looking
from gatewayd_hooks.caching import NORMAL_PRIORITY

# The daemon refuses an engine of another version: messages are arrays without field names.
PROTOCOL_VERSION = 9
MAX_FRAME_BYTES = 16 * 1024 * 1024

FINISH_REASONS = ("stop", "length", "abort", "error")
STOP, LENGTH, ABORT, ERROR = range(4)

POOLINGS = ("mean", "last")


# ``gc=False``, here and below: messages have no reference cycles, and the collector need not
# traverse them.
class SamplingParams(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Sampling parameters. Bounds are checked by the gateway and again by the engine.

    Temperature acts before top-k, top-p and min-p; the penalties before temperature.
    ``temperature`` 0 is greedy. ``top_k`` 0 disables it. ``seed`` None lets the engine draw one.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    logit_bias: list[tuple[int, float]] = []
    stop_token_ids: list[int] = []
    logprobs: int | None = None
    """Number of top alternatives to report for each generated token; 0 reports only its own."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first; the prompt is then computed in full."""
    extra: dict[str, Any] = {}
    tenant: str = ""
    """Tenant, for logits processors; the engine copies it from ``Submit.tenant``."""
    guide: tuple[str | bool, ...] | None = None
    """Constraint of the output: a ``GuideSpec``."""
    pooling: str | None = None
    """One of ``POOLINGS``: return the prompt's hidden states, of all tokens or of the last one."""
    guide_behind: tuple[str, str] | None = None
    """Marks of reasoning that may precede the constrained part, as ``Bounds``; None for none."""
    may_be_shorter: bool = False
    """Whether ``max_tokens`` is merely the rest of the context, which the tenant's KV quota may
    reduce."""


class Submit(msgspec.Struct, tag="submit", array_like=True, frozen=True, gc=False):
    """Generate from a prompt, once for each of ``sequences``, which share it.

    Sequence ids are assigned by the gateway and never reused during an engine's lifetime.
    """

    sequences: list[int]
    prompt: bytes
    """int32 token ids."""
    params: SamplingParams
    salt: bytes = b""
    priority: int = 1
    tenant: str = ""
    queued_seconds: float = 0.0
    """Time since the request's arrival: preserves its order after a restart."""
    has_returned: bool = False
    """Whether it was on an engine before: then it is queued before new requests."""
    retention: tuple[int, float] = (NORMAL_PRIORITY, 0.0)
    """Eviction priority of its pages, 0 to 100, and for how many seconds after their last use it
    applies."""
    weight: float = 1.0
    """Fair-share weight of the tenant, relative to others."""
    deadline: float | None = None
    """Seconds from arrival to the wanted time of the first token; None for no deadline."""
    is_held: bool = False
    """Whether an operator holds it, see ``HoldRequest``: it waits until it is released."""
    request_id: str = ""
    """Request id of the gateway, for the log."""
    x_request_id: str = ""
    """Request id returned to the client, for the log."""


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True, gc=False):
    """Abort sequences at the next step boundary; ``StepOutput.ended`` lists all of them."""

    sequences: list[int]


class HoldRequest(msgspec.Struct, tag="hold", array_like=True, frozen=True, gc=False):
    """Stop the progress of sequences until ``Release``; unknown ids are ignored. No reply.

    Running ones release their rows and pages at the next step boundary.
    """

    sequences: list[int]


class Release(msgspec.Struct, tag="release", array_like=True, frozen=True, gc=False):
    """Release held sequences; others are ignored. No reply."""

    sequences: list[int]


class Bump(msgspec.Struct, tag="bump", array_like=True, frozen=True, gc=False):
    """Change the priority class of sequences, or move them to its front; unknown ids ignored."""

    sequences: list[int]
    priority: int | None = None
    """The new class; None moves them to the front of their own."""
    deadline: float | None = None
    """New deadline along with a class, see ``Submit``."""


class Evict(msgspec.Struct, tag="evict", array_like=True, frozen=True, gc=False):
    """Evict unreferenced cached pages; answered by ``Evicted``."""

    number: int
    """Number assigned by the daemon, echoed in the answer."""
    page: int | None = None
    """Evict this page and its descendants; None for those of a tenant."""
    tenant: str | None = None
    """Evict the pages of this tenant; None for all."""


class Shutdown(msgspec.Struct, tag="shutdown", array_like=True, frozen=True, gc=False):
    """End the process after the current step."""

    seconds: float = 0.0
    """Time limit for KV tiers to save pages for a later engine."""


class SwapStrategy(msgspec.Struct, tag="swap", array_like=True, frozen=True, gc=False):
    """Replace a strategy between two steps, once the new one is open.

    Answered by ``Swapped``; several are carried out in order.

    ``choices`` has one strategy, none to disable the kind, or for logits processors the whole
    chain in its order.
    """

    number: int
    """Number assigned by the daemon, echoed in the answer."""
    kind: str
    choices: list[StrategyChoice]
    holds: bool = False
    """Whether steps wait for the swap, so that all pending requests use the new strategy."""


class SetLimits(msgspec.Struct, tag="limits", array_like=True, frozen=True, gc=False):
    """Change limits of a step; no reply. Values are capped at the initial ones."""

    max_batch_tokens: int
    strategy_budget_ms: float


class Amount(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A number of pages of the KV pool; one of the two fields is 0."""

    pages: int = 0
    share: float = 0.0
    """Share of the pool."""


class TenantQuota(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Quota of a tenant in the KV pool of an engine."""

    tenant: str
    floor: Amount | None = None
    """Cached pages that are not evicted for other tenants."""
    ceiling: Amount | None = None
    """Pages that its sequences may hold."""


class SetQuotas(msgspec.Struct, tag="quotas", array_like=True, frozen=True, gc=False):
    """Replace all tenant quotas; no reply."""

    quotas: list[TenantQuota]


class PinPrefix(msgspec.Struct, tag="pin", array_like=True, frozen=True, gc=False):
    """Pin the cached pages of a prompt against eviction; answered by ``Pinned``.

    Or a page and those before it.
    """

    number: int
    """Number assigned by the daemon, echoed in the answer."""
    prompt: bytes
    """int32 token ids; empty, with 0 seconds, removes all pins."""
    seconds: float
    """Duration; 0 removes the pin."""
    salt: bytes = b""
    page: int | None = None
    """Last page to pin, instead of a prompt."""


_OfRequests = Submit | Abort | HoldRequest | Release | Bump
Command = (
    _OfRequests | Evict | Shutdown | SwapStrategy | SetLimits | SetQuotas | PinPrefix | Looking
)


class Loading(msgspec.Struct, tag="loading", array_like=True, frozen=True, gc=False):
    """Progress of the engine's start."""

    stage: str
    fraction: float


class ModelInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Description of the served model."""

    architecture: str
    num_parameters: int
    dtype: str
    device: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: list[int]
    num_pages: int
    page_size: int
    max_running: int
    max_batch_tokens: int
    strategies: dict[str, str] = {}
    """Names of the active strategies, by kind."""
    hidden_size: int = 0
    """Size of a hidden state."""
    page_bytes: int = 0
    """Bytes of a page of the KV pool; 0 if unknown."""
    kv_record_bytes: int = 0
    """Bytes of a token's key, or value, of one head in one layer; 0 if unknown."""
    weight_bytes: int = 0  # of the weights as they are computed with; 0 if unknown
    tuning_file: str = ""  # table of measured kernel choices; empty for none


class EngineReady(msgspec.Struct, tag="ready", array_like=True, frozen=True, gc=False):
    """The engine is ready to serve."""

    version: int
    pid: int
    model: ModelInfo
    load_seconds: float


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Logprobs of the raw logits at one position, best first."""

    sequence: int
    token: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top_tokens: list[int]
    top_logprobs: list[float]


class PooledOutput(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Hidden states of some prompt tokens, after the model's final norm."""

    sequence: int
    count: int
    """Number of tokens summed up."""
    vector: bytes
    """Sum of their hidden states, float32, shape ``[hidden_size]``."""


class Admitted(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """First admission of a sequence."""

    sequence: int
    cached_tokens: int
    queue_seconds: float


class Finished(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """End of a sequence; its last tokens are in the same message.

    ``reason`` indexes ``FINISH_REASONS``. ``stop_token`` is the token that ended it, which is
    not among the tokens, or None. ``error`` is a code and a message when it failed.
    """

    sequence: int
    reason: int
    stop_token: int | None = None
    error: tuple[str, str] | None = None


class StepOutput(msgspec.Struct, tag="step", array_like=True, frozen=True, gc=False):
    """Output of one step, as columns."""

    stats: EngineStats
    sequences: bytes = b""
    """int64 sequence id of each token, shape ``[n]``; tokens of a sequence are consecutive."""
    tokens: bytes = b""
    """int32 token ids, shape ``[n]``."""
    admitted: list[Admitted] = []
    finished: list[Finished] = []
    logprobs: list[TokenLogprobs] = []
    """In the order of ``tokens``, for sequences that requested them."""
    prompt_logprobs: list[TokenLogprobs] = []
    """In prompt order; complete before the sequence's first token."""
    pooled: list[PooledOutput] = []
    """In prompt order; complete before the sequence's first token."""
    preempted: list[int] = []
    """Ids of preempted sequences, once for each preemption."""
    moved: bytes = b""
    """int64 ids of sequences whose ``Cause`` has changed since the previous step, and of those
    with a prefill chunk in this one; shape ``[m]``."""
    causes: bytes = b""
    """int8 ``Cause`` of each, shape ``[m]``."""
    shares: bytes = b""
    """float32 share of this step's tokens in its prefill chunk, shape ``[m]``."""
    reached: bytes = b""
    """int32 prompt tokens up to the end of its chunk in this step, else 0; ``[m]``."""
    crowd: float = 0.0
    """Share of this step's tokens in prefill chunks."""
    plugins: dict[str, float] = {}
    """Seconds in calls of strategies since the previous step, by ``kind.name``."""
    ended: bytes = b""
    """int64 ids of sequences that have ended in any way, perhaps in earlier steps; ``[k]``."""
    spent: bytes = b""
    """float64 ``[k]``: engine seconds; all shares add up to ``EngineStats.busy_seconds``."""
    counts: bytes = b""
    """int32 ``[3, k]``: prompt tokens computed or cached, the cached ones, generated tokens."""


class Swapped(msgspec.Struct, tag="swapped", array_like=True, frozen=True, gc=False):
    """Result of a swap."""

    number: int
    error: str = ""
    """Reason of a failure, after which the old strategy stays in place; empty on success."""
    has_state: bool = False
    """Whether the old strategy's state was handed over."""


class Pinned(msgspec.Struct, tag="pinned", array_like=True, frozen=True, gc=False):
    """Result of a pin."""

    number: int
    tokens: int = 0
    """Tokens of the prompt that are pinned; for a page those up to its end, 0 if not cached."""
    error: str = ""
    """Why pins are not supported; empty on success."""


class Evicted(msgspec.Struct, tag="evicted", array_like=True, frozen=True, gc=False):
    """Result of an eviction."""

    number: int
    pages: int = 0
    """Evicted pages."""
    kept: int = 0
    """Pages not evicted because sequences hold them."""
    left: int = 0
    """Pages that exceed the limit of one step boundary: repeat the request."""
    error: str = ""
    """Why eviction is not supported; empty on success."""


class StrategyRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Statistics of one strategy, since the engine's start."""

    kind: str
    name: str
    state: str
    """``active``, ``quarantined``, or ``replaced`` by another."""
    faults: int
    calls: int
    seconds: float
    longest: float
    """Seconds of the slowest call."""


class StrategyReport(msgspec.Struct, tag="strategies", array_like=True, frozen=True, gc=False):
    """Statistics of all strategies; sent about once a second while the engine works."""

    rows: list[StrategyRow]


class Fatal(msgspec.Struct, tag="fatal", array_like=True, frozen=True, gc=False):
    """Fatal error of the engine, which exits after this."""

    code: str
    message: str
    strategy: list[str] = []
    """Kind and name of the strategy to quarantine in the next engine; empty for none."""


Event = (
    Loading
    | EngineReady
    | StepOutput
    | Swapped
    | Pinned
    | Evicted
    | Looked
    | StrategyReport
    | Fatal
)
