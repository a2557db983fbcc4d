"""Asks the matchers of sequences where they stand and which tokens may come next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from gatewayd_engine.process.config import GuideLimits
from gatewayd_engine.process.plugin_faults import Fault, StrategyHang
from gatewayd_engine.process.worker_thread import WorkerThread
from gatewayd_engine.sampling.guides.compiler import INVALID, Compiled, Guide
from gatewayd_engine.sampling.guides.cost_limits import GrammarCostLimit, too_slow
from gatewayd_engine.sampling.guides.mask_threads import Filling
from gatewayd_engine.sampling.guides.matcher_rows import Follower, MaskStep
from gatewayd_hooks.guiding import GuideFailed
from gatewayd_hooks.strategy import Kind

_QUICK = 2e-3
"""Seconds of masks that a step does not feel: they are filled within it."""


class Filler:
    """Asks matchers, and answers for them: one that fails is lost, and no other.

    Args:
        words: of a mask.
        ends: end tokens of the model.
        record: counts a fault of a guide.
        note: adds a call of a guide and its seconds.
        watched: does what asks a guide by a method, here and now; raises ``StrategyHang`` where it
            does not come back.
        limits: on what a sequence may cost.
        hang_seconds: that a guide may take.
    """

    def __init__(
        self,
        words: int,
        ends: Iterable[int],
        record: Callable[[Guide, BaseException], None],
        note: Callable[[Guide, str, float], None],
        watched: Callable[[Guide, str, Callable[[], None]], None],
        limits: GuideLimits,
        hang_seconds: float,
    ) -> None:
        self._ends = frozenset(ends)
        self._record = record
        self._note = note
        self._watched = watched
        self._limits = limits
        self._filling = Filling(words, self._ends, limits)
        self._hang_seconds = hang_seconds
        self._beside = WorkerThread("guide masks")
        self._room = np.zeros((0, words), np.int32)
        self._now: MaskStep | None = None

    def start(self, compiled: Compiled, output: Sequence[int]) -> Follower:
        """A follower behind these tokens; it may be lost."""
        pace = GrammarCostLimit(self._limits.token_seconds, self._limits.ahead_seconds)
        follower = Follower(compiled, None, pace)  # type: ignore[arg-type]
        self._guarded(follower, lambda: self._restart(follower, output))
        return follower

    def _restart(self, follower: Follower, output: Sequence[int]) -> None:
        follower.matcher = follower.compiled.start()
        self._accept(follower, output)

    def accept(self, coming: Sequence[tuple[Follower, int]], *, is_sure: bool = True) -> None:
        """Followers go on by a token each.

        Args:
            coming: who, and by which.
            is_sure: whether their masks have allowed them; whose has not, is lost, and by no fault
                of its guide.
        """
        left = iter(coming)
        one: Follower | None = None

        def go_on() -> None:
            nonlocal one
            for one, token in left:
                if not (one.has_ended or one.is_lost):
                    self._guarded(one, partial(self._accept, one, (token,), is_sure))

        while coming:
            try:
                self._watched(coming[0][0].compiled.guide, "accept", go_on)
            except StrategyHang as hang:
                # The others have not been asked yet.
                if one is not None:
                    self._lose(one, hang)
            else:
                return

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
            if self._filling.spends(follower, time.thread_time() - began):
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

    # Masks

    def is_quick(self, followers: list[Follower], drafts: list[list[int]]) -> bool:
        """Whether masks cost a step less than a thread that fills them beside it.

        What computes has all cores, and the interpreter is passed to and fro.
        """
        masks = zip(followers, drafts, strict=True)
        return sum(one.pace.mask_seconds * (1 + len(more)) for one, more in masks) < _QUICK

    def begin(self, followers: list[Follower], drafts: list[list[int]]) -> None:
        """Begin to fill masks in a thread; nothing is asked of the matchers until ``step``."""
        self._now = step = self._laid_out(followers, drafts)
        self._beside.begin(lambda: self._filling.fill(step))

    @property
    def is_filling(self) -> bool:
        """Whether masks were begun and not taken."""
        return self._now is not None

    def step(self) -> MaskStep:
        """Wait for the masks that were begun."""
        step, self._now = self._now, None
        if step is None:
            raise RuntimeError("no masks were begun")
        if self._beside.wait(self._hang_seconds):
            for guide, seconds in step.seconds.items():
                self._note(guide, "fill_many", seconds)
            self._settle(step)
            return step
        return self._given_up(step)

    def fill(self, followers: list[Follower], drafts: list[list[int]]) -> MaskStep:
        """Fill masks here and now."""
        step = self._laid_out(followers, drafts)
        try:
            guide = followers[0].compiled.guide
            self._watched(guide, "fill_many", lambda: self._filling.fill(step))
        except StrategyHang:
            return self._given_up(step)
        self._settle(step)
        return step

    def close(self) -> None:
        """Let the thread end."""
        self._beside.close()

    def _laid_out(self, followers: list[Follower], drafts: list[list[int]]) -> MaskStep:
        needed = len(followers) + sum(map(len, drafts))
        if len(self._room) < needed:
            self._room = np.zeros((2 * needed, self._room.shape[1]), np.int32)
        return MaskStep(followers, drafts, self._room)

    def _given_up(self, step: MaskStep) -> MaskStep:
        """A guide does not come back: all who wait are lost, and what it writes to is its own."""
        self._room = np.zeros((0, self._room.shape[1]), np.int32)
        for guide in {one.compiled.guide for one in step.followers}:
            reason = f"{guide.choice.name} does not come back from a mask; it was given"
            self._record(guide, StrategyHang(Kind.GUIDE, f"{reason} {self._hang_seconds:g} s"))
        for one in step.followers:
            one.fault = one.fault or _failure(one.compiled.guide)
        return MaskStep(step.followers, step.drafts, self._room)

    def _settle(self, step: MaskStep) -> None:
        """Count the faults that were found; that is for the thread of the steps."""
        for who, error in step.faults:
            if isinstance(who, Guide):
                self._record(who, error)
            else:
                self._lose(who, error)


def _failure(guide: Guide) -> Fault:
    name = guide.choice.name
    return "strategy_error", f"the guide {name} failed; try again, or ask for free text"
