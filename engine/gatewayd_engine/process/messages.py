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

PROTOCOL_VERSION = 9
MAX_FRAME_BYTES = 16 * 1024 * 1024

FINISH_REASONS = ("stop", "length", "abort", "error")
STOP, LENGTH, ABORT, ERROR = range(4)

POOLINGS = ("mean", "last")


class SamplingParams(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How to choose tokens. Bounds are checked by the gateway and again by the engine.

    Temperature acts before top-k, top-p and min-p; the penalties before temperature.
    ``temperature`` 0 is greedy. ``top_k`` 0 is off. ``seed`` None lets the engine draw one.
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
    """Alternatives to report for each generated token; 0 reports the chosen one alone."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first; the prompt is then computed in full."""
    extra: dict[str, Any] = {}
    tenant: str = ""
    """For logits processors; the engine takes it from ``Submit.tenant``."""
    guide: tuple[str | bool, ...] | None = None
    """What the answer must follow: a ``GuideSpec``."""
    pooling: str | None = None
    """One of ``POOLINGS``: the prompt's hidden states are told, all of them or the last one's."""
    guide_behind: tuple[str, str] | None = None
    """The marks of the reasoning that may stand before it, as ``Bounds``; None for none."""
    may_be_shorter: bool = False
    """``max_tokens`` is what is left of the context: its tenant's part of the KV cache may have
    less."""


class Submit(msgspec.Struct, tag="submit", array_like=True, frozen=True, gc=False):
    """Generate from a prompt, once for each of ``sequences`` (``n`` of them share it).

    Sequence ids are chosen by the gateway and never reused while an engine lives.
    """

    sequences: list[int]
    prompt: bytes
    """int32 token ids."""
    params: SamplingParams
    salt: bytes = b""
    priority: int = 1
    tenant: str = ""
    queued_seconds: float = 0.0
    """How long ago the request came to the gateway: keeps its place after a restart."""
    has_returned: bool = False
    """It was on an engine before: it waits in front of those that were not."""
    retention: tuple[int, float] = (NORMAL_PRIORITY, 0.0)
    """Priority of its pages when cached ones are given up, 0 to 100, and for how many seconds
    after their last use it counts."""
    weight: float = 1.0
    """What is due to the tenant, as ratio to others."""
    deadline: float | None = None
    """Seconds from the request's arrival to the first token that is wanted; None for no wish."""
    is_held: bool = False
    """An operator holds it, see ``HoldRequest``: it waits until it is released."""
    request_id: str = ""
    """The gateway's own, for the log."""
    x_request_id: str = ""
    """What its client is told, for the log."""


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True, gc=False):
    """Forget sequences at the next step boundary; ``StepOutput.ended`` names all of them."""

    sequences: list[int]


class HoldRequest(msgspec.Struct, tag="hold", array_like=True, frozen=True, gc=False):
    """Let sequences make no progress until ``Release``; unknown ids are ignored. No reply.

    Those that run give back their rows and pages at the next step boundary.
    """

    sequences: list[int]


class Release(msgspec.Struct, tag="release", array_like=True, frozen=True, gc=False):
    """Let sequences go on that were held; others are ignored. No reply."""

    sequences: list[int]


class Bump(msgspec.Struct, tag="bump", array_like=True, frozen=True, gc=False):
    """Change the class of sequences, or put them first in theirs; unknown ids are ignored."""

    sequences: list[int]
    priority: int | None = None
    """The new class; None puts them first in the one they have."""
    deadline: float | None = None
    """With a class, see ``Submit``."""


class Evict(msgspec.Struct, tag="evict", array_like=True, frozen=True, gc=False):
    """Give up cached pages that no sequence uses; answered by ``Evicted``."""

    number: int
    """The daemon's own, for the answer."""
    page: int | None = None
    """This one and those behind it; None for those of a tenant."""
    tenant: str | None = None
    """Whose; None for everybody's."""


class Shutdown(msgspec.Struct, tag="shutdown", array_like=True, frozen=True, gc=False):
    """End the process after the current step."""

    seconds: float = 0.0
    """For which KV tiers may write what a later engine finds again."""


class SwapStrategy(msgspec.Struct, tag="swap", array_like=True, frozen=True, gc=False):
    """Fill a slot with another strategy between two steps, once it is open.

    Answered by ``Swapped``; several are made one after the other.

    ``choices`` has one strategy, none to leave the slot empty, or for logits processors the
    whole chain in its order.
    """

    number: int
    """The daemon's own, for the answer."""
    kind: str
    choices: list[StrategyChoice]
    holds: bool = False
    """No step is made before it: what was asked before it is answered as after it."""


class SetLimits(msgspec.Struct, tag="limits", array_like=True, frozen=True, gc=False):
    """Change what a step may cost; no reply. Values beyond those of the start are cut to them."""

    max_batch_tokens: int
    strategy_budget_ms: float


class Amount(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Pages of the KV pool; one of the two is 0."""

    pages: int = 0
    share: float = 0.0
    """Of all that there are."""


class TenantQuota(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a tenant is promised of the KV pool of an engine."""

    tenant: str
    floor: Amount | None = None
    """Cached pages that are not given up for others."""
    ceiling: Amount | None = None
    """Pages that its sequences may hold."""


class SetQuotas(msgspec.Struct, tag="quotas", array_like=True, frozen=True, gc=False):
    """Bound these tenants from now on, and no others; no reply."""

    quotas: list[TenantQuota]


class PinPrefix(msgspec.Struct, tag="pin", array_like=True, frozen=True, gc=False):
    """Keep the cached pages of a prompt while others can be given up; answered by ``Pinned``.

    Or a page and those before it.
    """

    number: int
    """The daemon's own, for the answer."""
    prompt: bytes
    """int32 token ids; none, and 0 seconds, takes all pins back."""
    seconds: float
    """From now on; 0 takes the pin back."""
    salt: bytes = b""
    page: int | None = None
    """The last one of what is pinned, instead of a prompt."""


_OfRequests = Submit | Abort | HoldRequest | Release | Bump
Command = (
    _OfRequests | Evict | Shutdown | SwapStrategy | SetLimits | SetQuotas | PinPrefix | Looking
)


class Loading(msgspec.Struct, tag="loading", array_like=True, frozen=True, gc=False):
    """Progress while starting."""

    stage: str
    fraction: float


class ModelInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the engine serves."""

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
    """Kind to name of what is bound."""
    hidden_size: int = 0
    """Numbers of a hidden state."""
    page_bytes: int = 0
    """Of a page of the KV pool; 0 where nobody knows."""
    kv_record_bytes: int = 0
    """Of a token's key, or value, of one head in one layer; 0 where nobody knows."""
    weight_bytes: int = 0  # of the weights as they are computed with; 0 if unknown
    tuning_file: str = ""  # of what was chosen by measuring; empty for none


class EngineReady(msgspec.Struct, tag="ready", array_like=True, frozen=True, gc=False):
    """The engine serves from now on."""

    version: int
    pid: int
    model: ModelInfo
    load_seconds: float


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Log-probabilities of the raw logits at one position, best first."""

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
    """Tokens that were summed up."""
    vector: bytes
    """Their sum, float32, shape ``[hidden_size]``."""


class Admitted(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A sequence left the queue for the first time."""

    sequence: int
    cached_tokens: int
    queue_seconds: float


class Finished(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A sequence ended; its last tokens are in the same message.

    ``reason`` indexes ``FINISH_REASONS``. ``stop_token`` is the token that ended it, which is
    not among the tokens, or None. ``error`` is a code and a sentence when it failed.
    """

    sequence: int
    reason: int
    stop_token: int | None = None
    error: tuple[str, str] | None = None


class StepOutput(msgspec.Struct, tag="step", array_like=True, frozen=True, gc=False):
    """What one step produced, as columns."""

    stats: EngineStats
    sequences: bytes = b""
    """int64 id of the sequence that got each token, shape ``[n]``; those of one stand together."""
    tokens: bytes = b""
    """int32 token ids, shape ``[n]``."""
    admitted: list[Admitted] = []
    finished: list[Finished] = []
    logprobs: list[TokenLogprobs] = []
    """In the order of ``tokens``, for those sequences that asked."""
    prompt_logprobs: list[TokenLogprobs] = []
    """In prompt order; a sequence's own are complete before its first token."""
    pooled: list[PooledOutput] = []
    """In prompt order; a sequence's own are complete before its first token."""
    preempted: list[int] = []
    """Sequences that had to give up their pages, once for each time."""
    moved: bytes = b""
    """int64 ids of sequences that did something else since the step before this one than before it,
    and of those of whose prompt this one computed a chunk; shape ``[m]``."""
    causes: bytes = b""
    """int8 ``Cause`` of each, shape ``[m]``."""
    shares: bytes = b""
    """float32 share of the tokens of this step that were its own chunk's, shape ``[m]``."""
    reached: bytes = b""
    """int32 tokens of the prompt up to the end of its chunk in this step, else 0; ``[m]``."""
    crowd: float = 0.0
    """Share of the tokens of this step that were chunks of prompts."""
    plugins: dict[str, float] = {}
    """Seconds in calls of strategies since the step before, by ``kind.name``."""
    ended: bytes = b""
    """int64 ids of sequences that have ended in any way, perhaps before; shape ``[k]``."""
    spent: bytes = b""
    """float64 ``[k]``: seconds, shared by tokens; all add up to ``EngineStats.busy_seconds``."""
    counts: bytes = b""
    """int32 ``[3, k]``: prompt tokens computed or cached, the cached ones, generated tokens."""


class Swapped(msgspec.Struct, tag="swapped", array_like=True, frozen=True, gc=False):
    """What became of a swap."""

    number: int
    error: str = ""
    """Why it was refused and the one before goes on; empty if it was not."""
    has_state: bool = False
    """Whether what the one before knew was handed over."""


class Pinned(msgspec.Struct, tag="pinned", array_like=True, frozen=True, gc=False):
    """What became of a pin."""

    number: int
    tokens: int = 0
    """Of the prompt that are pinned now; for a page those up to its end, 0 if it is not cached."""
    error: str = ""
    """Why nothing can be pinned; empty if it can."""


class Evicted(msgspec.Struct, tag="evicted", array_like=True, frozen=True, gc=False):
    """What became of an eviction."""

    number: int
    pages: int = 0
    """That are free now."""
    kept: int = 0
    """That sequences use, and which therefore stay."""
    left: int = 0
    """That are to go, too, and that nobody was kept waiting for: ask again."""
    error: str = ""
    """Why nothing can be evicted; empty if it can."""


class StrategyRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One strategy that an engine has used; figures count from the engine's start."""

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
    """What strategies have cost so far; about once a second while the engine works."""

    rows: list[StrategyRow]


class Fatal(msgspec.Struct, tag="fatal", array_like=True, frozen=True, gc=False):
    """The engine cannot go on; it exits after this."""

    code: str
    message: str
    strategy: list[str] = []
    """Kind and name of the strategy without which the next engine is to start; none for none."""


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
