"""Asks matchers for the masks of one step, in whichever thread."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.config import GuideLimits
from gatewayd_engine.sampling.guides.compiler import Guide
from gatewayd_engine.sampling.guides.cost_limits import GrammarSuspicion, Share, too_many, too_slow
from gatewayd_engine.sampling.guides.matcher_rows import Follower, MaskStep
from gatewayd_hooks.guiding import GuideFailed


class Filling:
    """Fills masks, and keeps account of what they cost the steps.

    Args:
        words: of a mask.
        ends: end tokens of the model.
        limits: on what a sequence may cost.
    """

    def __init__(self, words: int, ends: Iterable[int], limits: GuideLimits) -> None:
        self._ends = frozenset(ends)
        self._limits = limits
        self._suspicion = GrammarSuspicion()
        self._share = Share(limits.step_seconds)
        bits = np.zeros(words * 32, np.bool_)
        bits[sorted(self._ends)] = True
        self._end_mask = np.packbits(bits, bitorder="little").view(np.int32)

    def spends(self, follower: Follower, seconds: float) -> bool:
        """A follower has taken so much; whether it is too much for one of them."""
        self._share.spend(seconds)
        return follower.pace.spend(seconds)

    def fill(self, step: MaskStep) -> None:
        """Depth by depth, all who come so far at once."""
        accepted = [0] * len(step.followers)
        alive = []
        for i, one in enumerate(step.followers):
            if one.has_ended:
                step.place(one, 0)[:] = self._end_mask
            elif not one.is_lost:
                alive.append(i)
        depth = 0
        while alive:
            bad = self._fill_depth([step.followers[i] for i in alive], step, depth)
            going = []
            for i in alive:
                one, drafts = step.followers[i], step.drafts[i]
                # What comes behind an end is never looked at.
                if id(one) in bad or depth >= len(drafts) or drafts[depth] in self._ends:
                    continue
                began = time.thread_time()
                try:
                    if one.matcher.accept(drafts[depth : depth + 1]) == 1:
                        accepted[i] += 1
                        going.append(i)
                except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                    step.faults.append((one, error))
                if self.spends(one, time.thread_time() - began):
                    step.faults.append((one, too_slow(self._limits)))
            alive = going
            depth += 1
        self._share.renew()
        for i in np.flatnonzero(accepted).tolist():
            one = step.followers[i]
            try:
                one.matcher.rollback(accepted[i])
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                step.faults.append((one, error))

    def _fill_depth(self, followers: list[Follower], step: MaskStep, depth: int) -> set[int]:
        """Fill a mask for each; those for whom there is none, by ``id``."""
        bad: set[int] = set()
        for guide in dict.fromkeys(one.compiled.guide for one in followers):
            theirs = [one for one in followers if one.compiled.guide is guide]
            theirs.sort(key=lambda one: one.guided is None)
            first = len(step.line)
            for one in theirs:
                step.place(one, depth)
            masks = step.masks[first : first + len(theirs)]
            began, longest = time.perf_counter(), 0.0
            if self._suspicion.is_any or self._share.is_over:
                lost, longest = self._fill_singly(theirs, masks, step)
                bad |= lost
            else:
                bad |= self._fill_together(guide, theirs, masks, step)
            for i in np.flatnonzero(~masks.any(1)).tolist():
                if id(theirs[i]) not in bad:
                    bad.add(id(theirs[i]))
                    step.faults.append((theirs[i], ValueError("it allows no token at all")))
            spent = time.perf_counter() - began
            if not longest:
                for one in theirs:
                    one.pace.mask_seconds = spent / len(theirs)
            self._suspicion.note(spent, longest)
            step.seconds[guide] = step.seconds.get(guide, 0.0) + spent
        return bad

    def _fill_together(
        self, guide: Guide, followers: list[Follower], masks: NDArray[np.int32], step: MaskStep
    ) -> set[int]:
        """Who still reasons is behind the others in the list, and filled by itself."""
        guided = [one.guided for one in followers if one.guided is not None]
        count = len(guided)
        if count < len(followers):
            lost, _ = self._fill_singly(followers[count:], masks[count:], step)
            if count:
                lost |= self._fill_together(guide, followers[:count], masks[:count], step)
            return lost
        try:
            guide.strategy.fill_many(guided, masks)
        except Exception as error:  # noqa: BLE001 - each alone, to find whose fault it is
            lost, _ = self._fill_singly(followers, masks, step)
            if not (lost or isinstance(error, GuideFailed)):
                step.faults.append((guide, error))
            return lost
        return set()

    def _fill_singly(
        self, followers: list[Follower], masks: NDArray[np.int32], step: MaskStep
    ) -> tuple[set[int], float]:
        """One by one: who has none, by ``id``, and the seconds of the slowest.

        The costliest come last, and not at all where the others have taken all that a step may.
        """
        bad, longest = set(), 0.0
        pairs = sorted(zip(followers, masks, strict=True), key=lambda pair: pair[0].pace.cost)
        for one, mask in pairs:
            if self._share.is_over and one.pace.is_costly:
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
            if self.spends(one, spent):
                step.faults.append((one, too_slow(self._limits)))
        return bad, longest
