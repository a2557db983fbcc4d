"""Prompt compaction: replaces the keys and values of a prompt's prefix by fewer ones.

The result depends on the prompt alone: the queries that the compacted keys are fitted to are
recomputed, whatever was cached, and no prefill chunk extends beyond the prompt of a sequence that
may be compacted. So a recomputed sequence gets the same compacted prefix, and the same output.
"""

from __future__ import annotations

import logging
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.compaction_queries import Ask, check_compacted, check_plan
from gatewayd_engine.process.log_context import about
from gatewayd_engine.process.plugin_faults import attribute_faults
from gatewayd_engine.scheduling.prompt_shortening import PromptShortening
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.kv_compression import Compacted, Compaction, Compacts
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)


@runtime_checkable
class CompactionRunner(Protocol):
    """A runner that can recompute the end of a prompt to expose its queries."""

    def fit(
        self, prompt: NDArray[np.int32], pages: list[int], last: int, covered: int, ask: Ask
    ) -> list[Compacted]:
        """Ask the strategy, layer by layer, for a compacted prefix of a prompt.

        Args:
            prompt: token ids; all of them have been computed.
            pages: its pages, in order.
            last: number of final tokens whose queries are passed on.
            covered: tokens of the prefix to compact.
            ask: calls the strategy.

        Returns:
            The compacted keys and values, by layer.
        """


class Compactor:
    """Compaction of the prompts of sequences.

    Args:
        queue: the engine's sequence table.
        shortening: replaces their pages.
        strategies: the active compression strategy, if there is one.
        runner: of the steps.
        page_size: tokens per page.
    """

    def __init__(
        self,
        queue: Queue,
        shortening: PromptShortening,
        strategies: Strategies,
        runner: object,
        page_size: int,
    ) -> None:
        self._queue = queue
        self._shortening = shortening
        self._strategies = strategies
        self._fits = runner if isinstance(runner, CompactionRunner) else None
        self._page_size = page_size

    @property
    def is_on(self) -> bool:
        """Whether new sequences may be compacted."""
        return self._fits is not None and self._strategies.compacts is not None

    def compact_completed(self, batch: StepBatch) -> None:
        """Compact the sequences whose prompts a step has completed."""
        asked, fits, queue = self._strategies.compacts, self._fits, self._queue
        if asked is None or fits is None:
            return
        is_end = batch.starts + batch.settled == queue.prompt_len[batch.slots]
        is_end &= queue.ids[batch.slots] == batch.sequences
        if not is_end.any():
            return
        ready = [queue[slot] for slot in batch.slots[is_end].tolist()]
        by_row = {one.row: one for one in ready if one.compacts and one.front is None}
        for plan in self._planned(asked, by_row) if by_row else ():
            if (sequence := by_row[plan.row]).row != plan.row:
                # Compacting another sequence has preempted this one; its cached pages are intact.
                self._shortening.discard_swapped(sequence)
                continue
            with about(sequence.names):
                self._shorten(asked, fits, sequence, plan)

    def _planned(self, asked: Compacts, by_row: dict[int, Sequence]) -> list[Compaction]:
        # Exactly the prompt has been computed, so both lengths are the prompt's.
        lengths = np.array([one.prompt_len for one in by_row.values()], np.int64)
        with attribute_faults(Kind.KV_COMPRESSION):
            planned = list(asked.plan(np.array(list(by_row), np.int64), lengths, lengths))
            rows = {one.row for one in planned}
            if len(rows) < len(planned) or not rows <= by_row.keys():
                raise ValueError(f"plans rows {[one.row for one in planned]} of {list(by_row)}")
            for one in planned:
                check_plan(one, by_row[one.row].prompt_len, self._page_size)
        return planned

    def _shorten(
        self, asked: Compacts, fits: CompactionRunner, sequence: Sequence, plan: Compaction
    ) -> None:
        covered, kept = plan.covered, plan.kept
        if not self._shortening.saves(covered, kept):
            return

        def ask(
            layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
        ) -> Compacted:
            with attribute_faults(Kind.KV_COMPRESSION):
                found = asked.compact(layer, queries, keys, values, kept)
                check_compacted(found, keys, kept)
            return found

        prompt = sequence.tokens[: sequence.prompt_len]
        last = min(plan.queries, sequence.prompt_len)
        # Fitted in full before any page is released, because it reads the pages.
        found = fits.fit(prompt, sequence.pages, last, covered, ask)
        if self._shortening.shorten(sequence, covered, kept, found):
            _log.debug("prompt compacted: %d KV entries replace its first %d tokens", kept, covered)
