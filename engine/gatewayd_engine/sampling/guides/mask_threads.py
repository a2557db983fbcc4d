"""Computation of a step's token masks by matchers, in the thread of the steps or another."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.config import GuideLimits
from gatewayd_engine.sampling.guides.compiler import Guide
from gatewayd_engine.sampling.guides.cost_limits import (
    SlowGrammarDetector,
    StepBudget,
    too_many,
    too_slow,
)
from gatewayd_engine.sampling.guides.matcher_rows import GuidedSequence, MaskStep
from gatewayd_hooks.guiding import GuideFailed


class MaskFiller:
    """Computes masks, and accounts for their time.

    Args:
        words: 32-bit words of a mask.
        ends: end tokens of the model.
        limits: limits on the cost of a sequence.
    """

    def __init__(self, words: int, ends: Iterable[int], limits: GuideLimits) -> None:
        self._ends = frozenset(ends)
        self._limits = limits
        self._suspicion = SlowGrammarDetector()
        self._budget = StepBudget(limits.step_seconds)
        bits = np.zeros(words * 32, np.bool_)
        bits[sorted(self._ends)] = True
        self._end_mask = np.packbits(bits, bitorder="little").view(np.int32)

    def charge(self, guided: GuidedSequence, seconds: float) -> bool:
        """Charge time to a sequence and the step; return whether the sequence exceeds its limit."""
        self._budget.spend(seconds)
        return guided.pace.spend(seconds)

    def fill(self, step: MaskStep) -> None:
        """Compute the masks of a step depth by depth, for all sequences with drafts that far."""
        accepted = [0] * len(step.guided)
        alive = []
        for i, one in enumerate(step.guided):
            if one.has_ended:
                step.allocate(one, 0)[:] = self._end_mask
            elif not one.has_failed:
                alive.append(i)
        depth = 0
        while alive:
            bad = self._fill_depth([step.guided[i] for i in alive], step, depth)
            going = []
            for i in alive:
                one, drafts = step.guided[i], step.drafts[i]
                # No mask is needed after an end token.
                if id(one) in bad or depth >= len(drafts) or drafts[depth] in self._ends:
                    continue
                # CPU time of this thread: a grammar is not charged for waiting for the GIL.
                began = time.thread_time()
                try:
                    if one.matcher.accept(drafts[depth : depth + 1]) == 1:
                        accepted[i] += 1
                        going.append(i)
                except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                    step.faults.append((one, error))
                if self.charge(one, time.thread_time() - began):
                    step.faults.append((one, too_slow(self._limits)))
            alive = going
            depth += 1
        self._budget.reset()
        # Drafts were accepted only for the masks after them; `accept` gets the verified ones.
        for i in np.flatnonzero(accepted).tolist():
            one = step.guided[i]
            try:
                one.matcher.rollback(accepted[i])
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                step.faults.append((one, error))

    def _fill_depth(self, guided: list[GuidedSequence], step: MaskStep, depth: int) -> set[int]:
        """Compute a mask for each sequence; return those that failed, by ``id``."""
        bad: set[int] = set()
        for guide in dict.fromkeys(one.compiled.guide for one in guided):
            same = [one for one in guided if one.compiled.guide is guide]
            # Sequences in their reasoning last: `fill_many` takes the matchers of the guide alone.
            same.sort(key=lambda one: one.guided is None)
            first = len(step.index)
            for one in same:
                step.allocate(one, depth)
            # Allocated one after another, so they are contiguous.
            masks = step.masks[first : first + len(same)]
            began, longest = time.perf_counter(), 0.0
            if self._suspicion.is_any or self._budget.is_over:
                failed, longest = self._fill_singly(same, masks, step)
                bad |= failed
            else:
                bad |= self._fill_together(guide, same, masks, step)
            for i in np.flatnonzero(~masks.any(1)).tolist():
                if id(same[i]) not in bad:
                    bad.add(id(same[i]))
                    step.faults.append((same[i], ValueError("the mask allows no token")))
            spent = time.perf_counter() - began
            if not longest:
                for one in same:
                    one.pace.mask_seconds = spent / len(same)
            self._suspicion.record(spent, longest)
            step.seconds[guide] = step.seconds.get(guide, 0.0) + spent
        return bad

    def _fill_together(
        self,
        guide: Guide,
        guided: list[GuidedSequence],
        masks: NDArray[np.int32],
        step: MaskStep,
    ) -> set[int]:
        """Compute masks in one call of the guide; return the sequences that failed, by ``id``.

        Sequences in their reasoning, which have to be last in the list, are computed one by one.
        """
        matchers = [one.guided for one in guided if one.guided is not None]
        count = len(matchers)
        if count < len(guided):
            failed, _ = self._fill_singly(guided[count:], masks[count:], step)
            if count:
                failed |= self._fill_together(guide, guided[:count], masks[:count], step)
            return failed
        try:
            guide.strategy.fill_many(matchers, masks)
        except Exception as error:  # noqa: BLE001 - repeated one by one, to find the culprit
            failed, _ = self._fill_singly(guided, masks, step)
            if not (failed or isinstance(error, GuideFailed)):
                step.faults.append((guide, error))
            return failed
        return set()

    def _fill_singly(
        self, guided: list[GuidedSequence], masks: NDArray[np.int32], step: MaskStep
    ) -> tuple[set[int], float]:
        """Compute masks one by one, the costliest last.

        Costly ones are not computed once the step's budget is used up.

        Returns:
            Sequences that failed, by ``id``, and the seconds of the slowest mask.
        """
        bad, longest = set(), 0.0
        # The cheapest first: only the costliest are left when the budget is used up.
        pairs = sorted(zip(guided, masks, strict=True), key=lambda pair: pair[0].pace.cost)
        for one, mask in pairs:
            if self._budget.is_over and one.pace.is_costly:
                bad.add(id(one))
                step.faults.append((one, too_many(self._limits)))
                continue
            began = time.thread_time()
            try:
                one.matcher.fill(mask)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                bad.add(id(one))
                step.faults.append((one, error))
                continue
            one.pace.mask_seconds = spent = time.thread_time() - began
            longest = max(longest, spent)
            if self.charge(one, spent):
                step.faults.append((one, too_slow(self._limits)))
        return bad, longest
