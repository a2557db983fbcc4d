"""One sequence in the engine: a prompt, what was generated, and what it holds."""

from __future__ import annotations

import math
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


class Sequence:
    """A live sequence; numbers that schedulers see are in the queue's columns instead.

    Attributes:
        id: the gateway's number for it.
        slot: its place in the columns while it lives.
        row: its place in the running batch, -1 while it waits.
        params: how to choose its tokens.
        prompt_len: tokens of the prompt.
        limit: tokens it may reach, prompt included.
        tokens: its ids. While it waits, exactly those it has, shape ``[num_tokens]``; while it
            runs, a line of the batch's token table, shape ``[max_model_len]``, of which the
            first ``num_tokens`` are its own.
        pages: the pages it holds, in token order; ``NO_PAGE`` for what its front has no need of.
        front: what stands for its first tokens; None where all are kept.
        compacts: whether it may get one. Then its prompt is computed by itself, and nothing
            behind that is taken from others: what follows sees what it saw the first time.
        trail: the prefix cache's note.
        salt: of the prefix cache.
        tenant: whose it is.
        priority: its class.
        weight: what is due to its tenant, as ratio to others.
        deadline: ``time.monotonic`` at which its first token is wanted; infinite for no wish.
        retention: eviction priority of its pages, and for how many seconds after their last use.
        seed: of its random numbers.
        forks: sequences that share its prompt and wait until it is computed.
        keys: what KV tiers call its first full pages, as far as anybody asked.
        kept: what it had computed when it was swapped out; None if it was not.
        grammar: what its answer must follow, on its way or there; None for free text.
        inherited: full and partial pages of the prompt taken over from a finished prefill.
        preemptions: how often it had to give up its pages for want of free ones.
        exact_until: see ``Rows``; kept here while it waits.
        decodes_from: the same.
        known: the same; None for nothing.
        reported: prompt tokens whose log-probabilities were told.
        was_admitted: whether it has left the queue once.
        cached: prompt tokens that it found in the prefix cache when it first did.
        was_counted: whether its request is in the prefix cache's statistics.
        is_urgent: whether an operator has put it first in its class.
        submitted: ``time.monotonic`` when the engine got it.
        names: of its request, for the log.
    """

    __slots__ = (
        "cached",
        "compacts",
        "deadline",
        "decodes_from",
        "exact_until",
        "forks",
        "front",
        "grammar",
        "id",
        "inherited",
        "is_urgent",
        "kept",
        "keys",
        "known",
        "limit",
        "names",
        "pages",
        "params",
        "preemptions",
        "priority",
        "prompt_len",
        "reported",
        "retention",
        "row",
        "salt",
        "seed",
        "slot",
        "submitted",
        "tenant",
        "tokens",
        "trail",
        "was_admitted",
        "was_counted",
        "weight",
    )

    def __init__(
        self,
        sequence_id: int,
        prompt: NDArray[np.int32],
        params: SamplingParams,
        *,
        salt: bytes,
        tenant: str,
        priority: int,
        seed: int,
        limit: int,
        submitted: float,
        retention: tuple[int, float] = (NORMAL_PRIORITY, 0.0),
        weight: float = 1.0,
        deadline: float = math.inf,
        names: Names = NOBODY,
    ) -> None:
        self.id = sequence_id
        self.names = names
        self.slot = -1
        self.row = -1
        self.params = params
        self.prompt_len = len(prompt)
        self.limit = limit
        self.tokens = prompt
        self.pages: list[int] = []
        self.front: CompactedPrefix | None = None
        self.compacts = False
        self.trail: Any = None
        self.salt = salt
        self.tenant = tenant
        self.priority = priority
        self.weight = weight
        self.deadline = deadline
        self.retention = retention
        self.seed = seed
        self.forks: list[Sequence] = []
        self.inherited: list[int] = []
        self.keys: list[bytes] = []
        self.kept: Incoming | None = None
        self.grammar: SequenceGrammar | None = None
        self.preemptions = 0
        self.reported = 0
        self.exact_until = int(ALL_EXACT)
        self.decodes_from = 0
        self.known: CompressionState | None = None
        self.was_admitted = False
        self.cached = 0
        self.was_counted = False
        self.is_urgent = False
        self.submitted = submitted

    @property
    def shares(self) -> bool:
        """Whether it may use what others have computed."""
        wants_all = self.params.prompt_logprobs is not None or self.params.pooling == "mean"
        is_shorter = self.kept is not None and self.kept.front is not None
        return self.trail is not None and not wants_all and not is_shorter

    def whole(self, num_tokens: int) -> int:
        """Of its first tokens, those that see all that is before them."""
        return min(num_tokens, self.prompt_len) if self.compacts else num_tokens
