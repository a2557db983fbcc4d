"""Rows: the places of the running batch, and what each step gathers from them.

A row keeps its token ids, its block table and its sampling parameters in columns, so that a
step is built by indexing with the rows it computes instead of walking over sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gatewayd_engine.kv.compacted_prefix import CompactedPrefix
from gatewayd_engine.process.messages import POOLINGS
from gatewayd_engine.state.columns import ColumnSet, column
from gatewayd_engine.state.sequence import ALL_EXACT, CompressionState, Sequence


@dataclass(slots=True)
class Changes:
    """Which parts of the columns a device does not know yet.

    Attributes:
        taken: rows that another sequence has got.
        pages: places of the block table: row, first place, how many.
    """

    taken: set[int] = field(default_factory=set)
    pages: list[tuple[int, int, int]] = field(default_factory=list)


class RunningBatch(ColumnSet):
    """ColumnSet of ``max_running`` rows, of shape ``[rows]`` where nothing else is said.

    Attributes:
        page_size: tokens per page.
        tokens: ids of each row's sequence, shape ``[rows, max_model_len]``.
        block_table: pages of each row's sequence, shape ``[rows, max_pages]``.
        fronts: of rows whose sequences have one, by row; their block tables begin with its pages.
        stop_tokens: end tokens of the request's own.
        follower: the KV compression of ``followed``, watched; after a swap or a fault another one,
            or none, may sit in its place before it is asked.
        known: what it knows of those that came back and were not followed since, by row.
        changes: what has changed since a device was last told; None if no device has a copy.
    """

    temperature = column(np.float32)
    top_p = column(np.float32, 1.0)
    min_p = column(np.float32)
    top_k = column(np.int64)
    """0 for off."""
    seed = column(np.uint64)
    is_seeded = column(np.bool_)
    """Whether the request brought its seed, and so wants its answer again."""
    is_greedy = column(np.bool_, True)
    """Whether the row takes the likeliest token."""
    is_filtered = column(np.bool_)
    """Whether it cuts the tail by top-k, top-p or min-p."""
    logprobs = column(np.int32, -1)
    """Alternatives to report, -1 for none."""
    prompt_logprobs = column(np.int32, -1)
    """The same."""
    pooling = column(np.int8)
    """1 more than the place in ``POOLINGS``, 0 for none."""
    ignores_eos = column(np.bool_)
    has_stop_tokens = column(np.bool_)
    min_len = column(np.int32)
    """Tokens before an end token counts, prompt included."""
    prompt_len = column(np.int32)
    reported = column(np.int32)
    """Prompt tokens whose log-probabilities, or hidden states, were told."""
    exact_until = column(np.int32, ALL_EXACT)
    """Tokens whose keys and values were computed from all before them; others may not have what
    comes behind."""
    decodes_from = column(np.int32)
    """Tokens that each had when its computation began; in front of that none is decoded, also
    where a chunk has a single one."""
    followed = column(np.int64, -1)
    """The sequence of each row that a KV compression follows; -1 if it has none, or one that has
    just come."""

    def __init__(self, max_running: int, max_model_len: int, page_size: int) -> None:
        n = max_running
        super().__init__(n)
        self.page_size = page_size
        self.tokens = np.zeros((n, max_model_len), np.int32)
        self.block_table = np.zeros((n, -(-max_model_len // page_size)), np.int64)
        self.fronts: dict[int, CompactedPrefix] = {}
        self.stop_tokens: list[frozenset[int]] = [frozenset()] * n
        self.follower: Any = None
        self.known: dict[int, CompressionState] = {}
        self.changes: Changes | None = None
        self._free = list(range(n - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Rows that nobody uses."""
        return len(self._free)

    def take(self, sequence: Sequence, num_tokens: int) -> int:
        """Give a sequence a row and fill its columns."""
        row = self._free.pop()
        params = sequence.params
        self.tokens[row, :num_tokens] = sequence.tokens[:num_tokens]
        sequence.tokens = self.tokens[row]
        sequence.row = row
        self.exact_until[row] = sequence.exact_until
        self.decodes_from[row] = sequence.decodes_from
        self.followed[row] = -1
        if sequence.known is not None:
            self.known[row], sequence.known = sequence.known, None
        self.temperature[row] = params.temperature
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.top_k[row] = params.top_k
        self.seed[row] = sequence.seed
        self.is_seeded[row] = params.seed is not None
        # Below this the others have no weight in float32, and what is not 0 there may be here.
        self.is_greedy[row] = params.temperature < 1e-7
        self.is_filtered[row] = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        self.logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self.prompt_logprobs[row] = -1 if params.prompt_logprobs is None else params.prompt_logprobs
        self.pooling[row] = 0 if params.pooling is None else POOLINGS.index(params.pooling) + 1
        self.ignores_eos[row] = params.ignore_eos
        self.has_stop_tokens[row] = bool(params.stop_token_ids)
        self.stop_tokens[row] = frozenset(params.stop_token_ids)
        # A grammar that has ended ends the answer, however short that is.
        min_tokens = 0 if params.guide is not None else params.min_tokens
        self.min_len[row] = sequence.prompt_len + min_tokens
        self.prompt_len[row] = sequence.prompt_len
        self.reported[row] = sequence.reported
        if self.changes is not None:
            self.changes.taken.add(row)
        return row

    def set_pages(self, row: int, first: int, pages: list[int]) -> None:
        """Write pages of a row's sequence into its block table.

        Args:
            row: of the sequence.
            first: which of its pages the first of them is.
            pages: one after the other; none of a front.
        """
        if row in self.fronts:
            first -= self.fronts[row].shift // self.page_size
        self.block_table[row, first : first + len(pages)] = pages
        if self.changes is not None:
            self.changes.pages.append((row, first, len(pages)))

    def set_front(self, row: int, front: CompactedPrefix, pages: list[int]) -> None:
        """The sequence of a row has a front; ``pages`` are all of its own, in token order."""
        size = self.page_size
        few = [*pages[: front.kept // size], *pages[front.covered // size :]]
        self.fronts.pop(row, None)
        self.set_pages(row, 0, few)
        self.fronts[row] = front

    def give_back(self, sequence: Sequence, num_tokens: int) -> None:
        """The sequence leaves the batch and keeps its tokens."""
        row = sequence.row
        self.fronts.pop(row, None)
        sequence.tokens = self.tokens[row, :num_tokens].copy()
        sequence.reported = int(self.reported[row])
        sequence.exact_until = int(self.exact_until[row])
        if row in self.known:
            sequence.known = self.known.pop(row)
        sequence.row = -1
        self._free.append(row)
