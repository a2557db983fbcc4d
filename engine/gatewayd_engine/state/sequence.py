"""State of one sequence: prompt, generated tokens, pages, and options."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.compacted_prefix import CompactedPrefix
from gatewayd_engine.kv.swapped_pages import IncomingPages
from gatewayd_engine.process.log_context import NO_NAMES, Names
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_hooks.caching import NORMAL_PRIORITY

ALL_EXACT = np.iinfo(np.int32).max
"""``exact_until`` of a sequence that has always attended to all tokens."""


class CompressionState(NamedTuple):
    """State of a KV compression strategy for a sequence that was swapped out.

    Attributes:
        strategy: the strategy, watched; the state is passed to no other.
        state: opaque to the engine.
    """

    strategy: Any
    state: object


class SequenceGrammar(Protocol):
    """Grammar of a constrained sequence, as far as scheduling needs it.

    Attributes:
        is_settled: whether compilation has ended, successfully or not.
        refusal: error code and message for the client; None if it was not rejected.
    """

    is_settled: bool
    refusal: tuple[str, str] | None


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """A live sequence; numbers shown to schedulers are in the queue's columns instead."""

    id: int
    """Sequence id assigned by the gateway."""
    tokens: NDArray[np.int32]
    """Token ids, at first those of the prompt. While it waits, exactly those it has, shape
    ``[num_tokens]``; while it runs, a row of the batch's token table, shape ``[max_model_len]``,
    of which the first ``num_tokens`` are its own."""
    params: SamplingParams
    """Sampling parameters."""
    _: KW_ONLY
    salt: bytes
    """Cache salt: prefixes are shared only between sequences of the same salt."""
    tenant: str
    """Name of the tenant."""
    priority: int
    """Priority class."""
    seed: int
    """Seed of its random numbers."""
    limit: int
    """Maximum length in tokens, prompt included."""
    submitted: float
    """``time.monotonic`` of the request's arrival."""
    retention: tuple[int, float] = (NORMAL_PRIORITY, 0.0)
    """Eviction priority of its pages, and for how many seconds after their last use."""
    weight: float = 1.0
    """Fair-share weight of its tenant, relative to others."""
    deadline: float = math.inf
    """``time.monotonic`` by which its first token is wanted; infinite for none."""
    names: Names = NO_NAMES
    """Request ids for the log."""
    prompt_len: int = field(init=False)
    """Number of prompt tokens."""
    slot: int = field(init=False, default=-1)
    """Its queue slot while it is live."""
    row: int = field(init=False, default=-1)
    """Its batch row, -1 while it waits."""
    pages: list[int] = field(init=False, default_factory=list)
    """Its pages, in token order; ``NO_PAGE`` for those that its compacted prefix replaces."""
    front: CompactedPrefix | None = field(init=False, default=None)
    """Its compacted prefix; None if all keys and values are kept."""
    compacts: bool = field(init=False, default=False)
    """Whether its prompt may be compacted. Then the prompt is prefilled separately, and no cached
    page after it is shared: later tokens must attend to the same keys when recomputed."""
    trail: Any = field(init=False, default=None)
    """The prefix cache's lookup state."""
    forks: list[Sequence] = field(init=False, default_factory=list)
    """Sequences that share its prompt and wait until it is computed."""
    inherited: list[int] = field(init=False, default_factory=list)
    """Full and partial pages of the prompt shared by a parent that has computed it."""
    tier_keys: list[bytes] = field(init=False, default_factory=list)
    """KV tier keys of its first full pages, as far as they were computed."""
    swapped: IncomingPages | None = field(init=False, default=None)
    """Its swapped-out pages; None if it was not swapped out."""
    grammar: SequenceGrammar | None = field(init=False, default=None)
    """Grammar of its output; None for unconstrained output."""
    preemptions: int = field(init=False, default=0)
    """Number of preemptions for lack of free pages."""
    reported: int = field(init=False, default=0)
    """Prompt tokens whose logprobs have been reported."""
    exact_until: int = field(init=False, default=int(ALL_EXACT))
    """See ``RunningBatch``; saved here while it waits."""
    decodes_from: int = field(init=False, default=0)
    """See ``RunningBatch``."""
    compression_state: CompressionState | None = field(init=False, default=None)
    """State for the KV compression while it waits; None for none."""
    was_admitted: bool = field(init=False, default=False)
    """Whether it has been admitted at least once."""
    cached: int = field(init=False, default=0)
    """Prompt tokens found in the prefix cache at the first admission."""
    was_counted: bool = field(init=False, default=False)
    """Whether its request is in the prefix cache's statistics."""
    is_urgent: bool = field(init=False, default=False)
    """Whether an operator has moved it to the front of its class."""

    def __post_init__(self) -> None:
        self.prompt_len = len(self.tokens)

    @property
    def may_share(self) -> bool:
        """Whether it may use pages computed by other sequences."""
        # Both need the hidden states of every prompt token, so the whole prompt is computed.
        wants_all = self.params.prompt_logprobs is not None or self.params.pooling == "mean"
        # A compacted prefix is restored as a whole, not behind cached pages.
        is_shorter = self.swapped is not None and self.swapped.front is not None
        return self.trail is not None and not wants_all and not is_shorter

    def exact_len(self, num_tokens: int) -> int:
        """Return how many of its first tokens attend to all tokens before them."""
        return min(num_tokens, self.prompt_len) if self.compacts else num_tokens
