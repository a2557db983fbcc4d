"""Asks the matchers of sequences where they stand and which tokens may come next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.config import GuideLimits
from gatewayd_engine.faults import Fault, StrategyHang
from gatewayd_engine.guides.beside import Beside
from gatewayd_engine.guides.compiling import INVALID, Compiled, Guide
from gatewayd_engine.guides.follower import Follower, Step
from gatewayd_engine.guides.pace import Pace, Share, Suspicion, too_many, too_slow
from gatewayd_hooks.guiding import GuideFailed
from gatewayd_hooks.strategy import Kind


class Filler:
    """Asks matchers, and answers for them: one that fails is lost, and no other.

    Args:
        words: of a mask.
        ends: end tokens of the model.
        record: counts a fault of a guide.
        note: adds a call of a guide and its seconds.
        limits: on what a sequence may cost.
        hang_seconds: that a guide may take.
    """

    def __init__(
        self,
        words: int,
        ends: Iterable[int],
        record: Callable[[Guide, BaseException], None],
        note: Callable[[Guide, str, float], None],
        limits: GuideLimits,
        hang_seconds: float,
    ) -> None:
        self._ends = frozenset(ends)
        self._record = record
        self._note = note
        self._limits = limits
        self._suspicion = Suspicion()
        self._share = Share(limits.step_seconds)
        self._hang_seconds = hang_seconds
        self._beside = Beside("guide masks")
        self._room = np.zeros((0, words), np.int32)
        self._now: Step | None = None
        bits = np.zeros(words * 32, np.bool_)
        bits[sorted(self._ends)] = True
        self._end_mask = np.packbits(bits, bitorder="little").view(np.int32)

    def start(self, compiled: Compiled, output: Sequence[int]) -> Follower:
        """A follower behind these tokens; it may be lost."""
        pace = Pace(self._limits.token_seconds, self._limits.ahead_seconds)
        follower = Follower(compiled, None, pace)  # type: ignore[arg-type]
        self._guarded(follower, lambda: self._restart(follower, output))
        return follower

    def _restart(self, follower: Follower, output: Sequence[int]) -> None:
        follower.matcher = follower.compiled.start()
        self._accept(follower, output)

    def accept(self, follower: Follower, tokens: Sequence[int], *, is_sure: bool = True) -> None:
        """A follower goes on by tokens.

        Args:
            follower: who.
            tokens: what came.
            is_sure: whether its masks have allowed them; if not, it is lost, and by no fault of
                its guide.
        """
        if not (follower.has_ended or follower.is_lost):
            self._guarded(follower, lambda: self._accept(follower, tokens, is_sure))

    def _accept(self, follower: Follower, tokens: Sequence[int], is_sure: bool = True) -> None:
        count = follower.matcher.accept(tokens)
        follower.pace.earn(len(tokens))
        if count != len(tokens):
            if is_sure:
                raise ValueError(f"accepted {count} of {len(tokens)} tokens that it had allowed")
            follower.fault = _failure(follower.compiled.guide)
        follower.has_ended = bool(tokens) and tokens[-1] in self._ends

    def reach(self, follower: Follower, among: int) -> int:
        """How many tokens may be guessed of a follower: behind each there is a mask to fill.

        Args:
            follower: who.
            among: so many whose masks the same step waits for.
        """
        return int(self._limits.step_seconds / (among * max(follower.pace.mask_seconds, 1e-6)))

    def forced(self, follower: Follower) -> Sequence[int]:
        """What must come next."""
        found: list[Sequence[int]] = [()]
        if not (follower.has_ended or follower.is_lost):
            self._guarded(follower, lambda: found.append(follower.matcher.forced()))
        return found[-1]

    def _guarded(self, follower: Follower, ask: Callable[[], None]) -> None:
        began = time.thread_time()
        try:
            ask()
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._lose(follower, error)
        else:
            if self._spends(follower, time.thread_time() - began):
                self._lose(follower, too_slow(self._limits))

    def _lose(self, follower: Follower, error: BaseException) -> None:
        """A follower cannot go on; the first reason counts."""
        if follower.is_lost:
            return
        if isinstance(error, GuideFailed):
            follower.fault = (INVALID, str(error))
            return
        follower.fault = _failure(follower.compiled.guide)
        self._record(follower.compiled.guide, error)

    def _spends(self, follower: Follower, seconds: float) -> bool:
        """Whether it is too much for one of them."""
        self._share.spend(seconds)
        return follower.pace.spend(seconds)

    # Masks

    def begin(self, followers: list[Follower], drafts: list[list[int]]) -> None:
        """Begin to fill masks in a thread; nothing is asked of the matchers until ``step``."""
        self._now = step = self._laid_out(followers, drafts)
        self._beside.begin(lambda: self._fill(step))

    @property
    def is_filling(self) -> bool:
        """Whether masks were begun and not taken."""
        return self._now is not None

    def step(self) -> Step:
        """Wait for the masks that were begun."""
        step, self._now = self._now, None
        if step is None:
            raise RuntimeError("no masks were begun")
        if self._beside.wait(self._hang_seconds):
            self._settle(step)
            return step
        return self._given_up(step)

    def fill(self, followers: list[Follower], drafts: list[list[int]]) -> Step:
        """Fill masks here and now."""
        step = self._laid_out(followers, drafts)
        self._fill(step)
        self._settle(step)
        return step

    def close(self) -> None:
        """Let the thread end."""
        self._beside.close()

    def _laid_out(self, followers: list[Follower], drafts: list[list[int]]) -> Step:
        needed = len(followers) + sum(map(len, drafts))
        if len(self._room) < needed:
            self._room = np.zeros((2 * needed, self._room.shape[1]), np.int32)
        return Step(followers, drafts, self._room)

    def _given_up(self, step: Step) -> Step:
        """A guide does not come back: all who wait are lost, and what it writes to is its own."""
        self._room = np.zeros((0, self._room.shape[1]), np.int32)
        for guide in {one.compiled.guide for one in step.followers}:
            reason = f"{guide.choice.name} does not come back from a mask; it was given"
            self._record(guide, StrategyHang(Kind.GUIDE, f"{reason} {self._hang_seconds:g} s"))
        for one in step.followers:
            one.fault = one.fault or _failure(one.compiled.guide)
        return Step(step.followers, step.drafts, self._room)

    def _settle(self, step: Step) -> None:
        """Count what a thread has found; that is for this one."""
        for who, error in step.faults:
            if isinstance(who, Guide):
                self._record(who, error)
            else:
                self._lose(who, error)
        for guide, seconds in step.seconds.items():
            self._note(guide, "fill_many", seconds)

    # In whichever thread

    def _fill(self, step: Step) -> None:
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
                if self._spends(one, time.thread_time() - began):
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

    def _fill_depth(self, followers: list[Follower], step: Step, depth: int) -> set[int]:
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
        self, guide: Guide, followers: list[Follower], masks: NDArray[np.int32], step: Step
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
        self, followers: list[Follower], masks: NDArray[np.int32], step: Step
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
            if self._spends(one, spent):
                step.faults.append((one, too_slow(self._limits)))
        return bad, longest


def _failure(guide: Guide) -> Fault:
    name = guide.choice.name
    return "strategy_error", f"the guide {name} failed; try again, or ask for free text"
