"""One sequence in the engine: a prompt, what was generated, and what it holds."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.compacted_prefix import CompactedPrefix
from gatewayd_engine.kv.swapped_pages import Incoming
from gatewayd_engine.process.log_context import NOBODY, Names
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_hooks.caching import NORMAL_PRIORITY

ALL_EXACT = np.iinfo(np.int32).max
"""``exact_until`` of who has always attended to all."""


class CompressionState(NamedTuple):
    """What a KV compression knows of a sequence that was swapped out.

    Attributes:
        whose: the strategy, watched; nobody else is told.
        what: for itself alone.
    """

    whose: Any
    what: object


class SequenceGrammar(Protocol):
    """What a sequence's answer must follow, as far as scheduling looks at it.

    Attributes:
        is_settled: whether it is compiled, or refused, for good.
        refusal: code and sentence for the client; None if it is not refused.
    """

    is_settled: bool
    refusal: tuple[str, str] | None


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """A live sequence; numbers that schedulers see are in the queue's columns instead."""

    id: int
    """The gateway's number for it."""
    tokens: NDArray[np.int32]
    """Its ids, at first those of the prompt. While it waits, exactly those it has, shape
    ``[num_tokens]``; while it runs, a line of the batch's token table, shape ``[max_model_len]``,
    of which the first ``num_tokens`` are its own."""
    params: SamplingParams
    """How to choose its tokens."""
    _: KW_ONLY
    salt: bytes
    """Of the prefix cache."""
    tenant: str
    """Whose it is."""
    priority: int
    """Its class."""
    seed: int
    """Of its random numbers."""
    limit: int
    """Tokens it may reach, prompt included."""
    submitted: float
    """``time.monotonic`` when the engine got it."""
    retention: tuple[int, float] = (NORMAL_PRIORITY, 0.0)
    """Eviction priority of its pages, and for how many seconds after their last use."""
    weight: float = 1.0
    """What is due to its tenant, as ratio to others."""
    deadline: float = math.inf
    """``time.monotonic`` at which its first token is wanted; infinite for no wish."""
    names: Names = NOBODY
    """Of its request, for the log."""
    prompt_len: int = field(init=False)
    """Tokens of the prompt."""
    slot: int = field(init=False, default=-1)
    """Its place in the columns while it lives."""
    row: int = field(init=False, default=-1)
    """Its place in the running batch, -1 while it waits."""
    pages: list[int] = field(init=False, default_factory=list)
    """The pages it holds, in token order; ``NO_PAGE`` for what its front has no need of."""
    front: CompactedPrefix | None = field(init=False, default=None)
    """What stands for its first tokens; None where all are kept."""
    compacts: bool = field(init=False, default=False)
    """Whether it may get a front. Then its prompt is computed by itself, and nothing behind that
    is taken from others: what follows sees what it saw the first time."""
    trail: Any = field(init=False, default=None)
    """The prefix cache's note."""
    forks: list[Sequence] = field(init=False, default_factory=list)
    """Sequences that share its prompt and wait until it is computed."""
    inherited: list[int] = field(init=False, default_factory=list)
    """Full and partial pages of the prompt taken over from a finished prefill."""
    keys: list[bytes] = field(init=False, default_factory=list)
    """What KV tiers call its first full pages, as far as anybody asked."""
    kept: Incoming | None = field(init=False, default=None)
    """What it had computed when it was swapped out; None if it was not."""
    grammar: SequenceGrammar | None = field(init=False, default=None)
    """What its answer must follow, on its way or there; None for free text."""
    preemptions: int = field(init=False, default=0)
    """How often it had to give up its pages for want of free ones."""
    reported: int = field(init=False, default=0)
    """Prompt tokens whose log-probabilities were told."""
    exact_until: int = field(init=False, default=int(ALL_EXACT))
    """See ``RunningBatch``; kept here while it waits."""
    decodes_from: int = field(init=False, default=0)
    """The same."""
    known: CompressionState | None = field(init=False, default=None)
    """The same; None for nothing."""
    was_admitted: bool = field(init=False, default=False)
    """Whether it has left the queue once."""
    cached: int = field(init=False, default=0)
    """Prompt tokens that it found in the prefix cache when it first did."""
    was_counted: bool = field(init=False, default=False)
    """Whether its request is in the prefix cache's statistics."""
    is_urgent: bool = field(init=False, default=False)
    """Whether an operator has put it first in its class."""

    def __post_init__(self) -> None:
        self.prompt_len = len(self.tokens)

    @property
    def shares(self) -> bool:
        """Whether it may use what others have computed."""
        wants_all = self.params.prompt_logprobs is not None or self.params.pooling == "mean"
        is_shorter = self.kept is not None and self.kept.front is not None
        return self.trail is not None and not wants_all and not is_shorter

    def whole(self, num_tokens: int) -> int:
        """Of its first tokens, those that see all that is before them."""
        return min(num_tokens, self.prompt_len) if self.compacts else num_tokens
