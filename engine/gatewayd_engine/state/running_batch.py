"""The running batch: persistent rows with token ids, block table and sampling parameters.

These are columns over the rows, so that a step is gathered by indexing with the rows it computes
instead of iterating over sequences.
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
    """Parts of the columns that a device copy does not have yet.

    Attributes:
        taken: rows assigned to another sequence.
        pages: changed ranges of the block table: row, first index, length.
    """

    taken: set[int] = field(default_factory=set)
    pages: list[tuple[int, int, int]] = field(default_factory=list)


class RunningBatch(ColumnSet):
    """Columns over ``max_running`` batch rows, of shape ``[rows]`` unless stated otherwise.

    Attributes:
        page_size: tokens per page.
        tokens: token ids of each row's sequence, shape ``[rows, max_model_len]``.
        block_table: pages of each row's sequence, shape ``[rows, max_pages]``.
        fronts: compacted prefixes by row; the block table of such a row begins with their pages.
        stop_tokens: stop token ids of the request.
        follower: the KV compression strategy (watched) of the rows in ``followed``; after a swap
            or a fault, the active one may differ.
        known: state of this strategy for resumed sequences that were not followed since, by row.
        changes: changes since the last update of a device copy; None if there is no device copy.
    """

    temperature = column(np.float32)
    top_p = column(np.float32, 1.0)
    min_p = column(np.float32)
    top_k = column(np.int64)
    """0 to disable."""
    seed = column(np.uint64)
    is_seeded = column(np.bool_)
    """Whether the request specified the seed, and so expects reproducible output."""
    is_greedy = column(np.bool_, True)
    """Whether the row is decoded greedily."""
    is_filtered = column(np.bool_)
    """Whether top-k, top-p or min-p apply."""
    logprobs = column(np.int32, -1)
    """Number of top alternatives to report, -1 for none."""
    prompt_logprobs = column(np.int32, -1)
    """Number of top alternatives to report for prompt tokens, -1 for none."""
    pooling = column(np.int8)
    """Index into ``POOLINGS`` plus 1, 0 for none."""
    reports = column(np.bool_)
    """Whether logprobs, of the prompt or not, or hidden states are to be reported."""
    ignores_eos = column(np.bool_)
    has_stop_tokens = column(np.bool_)
    min_len = column(np.int32)
    """Minimum length, prompt included, before an end token takes effect."""
    prompt_len = column(np.int32)
    reported = column(np.int32)
    """Prompt tokens whose logprobs, or hidden states, have been reported."""
    exact_until = column(np.int32, ALL_EXACT)
    """Tokens whose keys and values were computed with attention to all tokens before them; later
    pages must not be shared with other sequences."""
    decodes_from = column(np.int32)
    """Tokens that the sequence had when its computation started; up to there all steps are
    prefill, even for a chunk of a single token."""
    followed = column(np.int64, -1)
    """Id of each row's sequence if a KV compression follows it; -1 for no sequence, or a newly
    added one."""

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
        """Number of unused rows."""
        return len(self._free)

    def add(self, sequence: Sequence, num_tokens: int) -> int:
        """Assign a row to a sequence, and fill the row's columns."""
        row = self._free.pop()
        params = sequence.params
        self.tokens[row, :num_tokens] = sequence.tokens[:num_tokens]
        # While it runs, the row is the only place of its tokens.
        sequence.tokens = self.tokens[row]
        sequence.row = row
        self.exact_until[row] = sequence.exact_until
        self.decodes_from[row] = sequence.decodes_from
        # Even if the same sequence had this row before: the compression has to admit it again.
        self.followed[row] = -1
        if sequence.compression_state is not None:
            self.known[row], sequence.compression_state = sequence.compression_state, None
        self.temperature[row] = params.temperature
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.top_k[row] = params.top_k
        self.seed[row] = sequence.seed
        self.is_seeded[row] = params.seed is not None
        # At lower temperatures all but the likeliest token underflow to 0 in float32.
        self.is_greedy[row] = params.temperature < 1e-7
        self.is_filtered[row] = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        self.logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self.prompt_logprobs[row] = -1 if params.prompt_logprobs is None else params.prompt_logprobs
        self.pooling[row] = 0 if params.pooling is None else POOLINGS.index(params.pooling) + 1
        self.reports[row] = (
            self.logprobs[row] >= 0 or self.prompt_logprobs[row] >= 0 or self.pooling[row] > 0
        )
        self.ignores_eos[row] = params.ignore_eos
        self.has_stop_tokens[row] = bool(params.stop_token_ids)
        self.stop_tokens[row] = frozenset(params.stop_token_ids)
        # A completed grammar ends the output, however short it is.
        min_tokens = 0 if params.guide is not None else params.min_tokens
        self.min_len[row] = sequence.prompt_len + min_tokens
        self.prompt_len[row] = sequence.prompt_len
        self.reported[row] = sequence.reported
        if self.changes is not None:
            self.changes.taken.add(row)
        return row

    def set_pages(self, row: int, first: int, pages: list[int]) -> None:
        """Write pages into a row's block table.

        Args:
            row: row of the sequence.
            first: index of the first of these pages in the sequence.
            pages: consecutive pages, none of a compacted prefix.
        """
        if row in self.fronts:
            # From an index by tokens to one by KV slots.
            first -= self.fronts[row].shift // self.page_size
        self.block_table[row, first : first + len(pages)] = pages
        if self.changes is not None:
            self.changes.pages.append((row, first, len(pages)))

    def set_front(self, row: int, front: CompactedPrefix, pages: list[int]) -> None:
        """Set a row's compacted prefix; ``pages`` are all of the sequence's, in token order."""
        size = self.page_size
        table = [*pages[: front.kept // size], *pages[front.covered // size :]]
        # So that `set_pages` does not shift this table, which is indexed by KV slots already.
        self.fronts.pop(row, None)
        self.set_pages(row, 0, table)
        self.fronts[row] = front

    def remove(self, sequence: Sequence, num_tokens: int) -> None:
        """Remove a sequence from the batch; it keeps ``num_tokens`` tokens."""
        row = sequence.row
        self.fronts.pop(row, None)
        # The row will belong to another sequence.
        sequence.tokens = self.tokens[row, :num_tokens].copy()
        sequence.reported = int(self.reported[row])
        sequence.exact_until = int(self.exact_until[row])
        if row in self.known:
            sequence.compression_state = self.known.pop(row)
        sequence.row = -1
        self._free.append(row)
