"""Lets a few keys and values take the place of many, once a prompt has landed.

What it does follows from the prompt alone: the queries that the few are fitted to are computed
again, whatever was cached, and no chunk goes beyond the prompt of a sequence that may become
shorter. So a sequence that is computed again gets the same front, and answers the same.
"""

from __future__ import annotations

import logging
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.compaction_queries import Ask, check_compacted, check_plan
from gatewayd_engine.process.log_context import about
from gatewayd_engine.process.plugin_faults import blame
from gatewayd_engine.scheduling.prompt_shortening import Shortening
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.kv_compression import Compacted, Compaction, Compacts
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)


@runtime_checkable
class Fits(Protocol):
    """Computes the end of a prompt again, for its queries."""

    def fit(
        self, prompt: NDArray[np.int32], pages: list[int], last: int, covered: int, ask: Ask
    ) -> list[Compacted]:
        """Ask in each layer what may stand for a prompt's front.

        Args:
            prompt: its ids; all of it has been computed.
            pages: of it, in order.
            last: tokens at its end whose queries are shown.
            covered: tokens of the front.
            ask: is asked.

        Returns:
            What was said, by layer.
        """


class Compactor:
    """Shortens sequences.

    Args:
        queue: of the engine.
        shortening: changes their pages.
        strategies: with the compression that is in use, if there is one.
        runner: of the steps.
        page_size: tokens per page.
    """

    def __init__(
        self,
        queue: Queue,
        shortening: Shortening,
        strategies: Strategies,
        runner: object,
        page_size: int,
    ) -> None:
        self._queue = queue
        self._shortening = shortening
        self._strategies = strategies
        self._fits = runner if isinstance(runner, Fits) else None
        self._page_size = page_size

    @property
    def is_on(self) -> bool:
        """Whether sequences that come now may get a front."""
        return self._fits is not None and self._strategies.compacts is not None

    def landed(self, batch: StepBatch) -> None:
        """A step has landed: shorten those whose prompts it has completed."""
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
                # Another one's front has cost it its place. What was kept of it is whole.
                self._shortening.begin_anew(sequence)
                continue
            with about(sequence.names):
                self._shorten(asked, fits, sequence, plan)

    def _planned(self, asked: Compacts, by_row: dict[int, Sequence]) -> list[Compaction]:
        lengths = np.array([one.prompt_len for one in by_row.values()], np.int64)
        with blame(Kind.KV_COMPRESSION):
            planned = list(asked.plan(np.array(list(by_row), np.int64), lengths, lengths))
            rows = {one.row for one in planned}
            if len(rows) < len(planned) or not rows <= by_row.keys():
                raise ValueError(f"plans rows {[one.row for one in planned]} of {list(by_row)}")
            for one in planned:
                check_plan(one, by_row[one.row].prompt_len, self._page_size)
        return planned

    def _shorten(self, asked: Compacts, fits: Fits, sequence: Sequence, plan: Compaction) -> None:
        covered, kept = plan.covered, plan.kept
        if not self._shortening.saves(covered, kept):
            return

        def ask(
            layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
        ) -> Compacted:
            with blame(Kind.KV_COMPRESSION):
                found = asked.compact(layer, queries, keys, values, kept)
                check_compacted(found, keys, kept)
            return found

        prompt = sequence.tokens[: sequence.prompt_len]
        last = min(plan.queries, sequence.prompt_len)
        found = fits.fit(prompt, sequence.pages, last, covered, ask)
        if self._shortening.shorten(sequence, covered, kept, found):
            _log.debug("prompt compacted: %d KV entries replace its first %d tokens", kept, covered)
