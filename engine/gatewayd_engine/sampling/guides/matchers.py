"""Grammar matchers of sequences: accepting tokens, and computing masks of the next ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from gatewayd_engine.process.config import GuideLimits
from gatewayd_engine.process.plugin_faults import Fault, StrategyHang
from gatewayd_engine.process.worker_thread import WorkerThread
from gatewayd_engine.sampling.guides.compiler import INVALID, CompiledGrammar, Guide
from gatewayd_engine.sampling.guides.cost_limits import GrammarCostLimit, too_slow
from gatewayd_engine.sampling.guides.mask_threads import MaskFiller
from gatewayd_engine.sampling.guides.matcher_rows import GuidedSequence, MaskStep
from gatewayd_hooks.guiding import GuideFailed
from gatewayd_hooks.strategy import Kind

_QUICK = 2e-3
"""Seconds of mask computation below which it runs within the step instead of in a thread."""


class GuideMatchers:
    """Calls the matchers of sequences and isolates faults: a failure affects one sequence only.

    Args:
        words: 32-bit words of a mask.
        ends: end tokens of the model.
        record: records a fault of a guide.
        record_call: records a call of a guide and its seconds.
        watched: runs a call of a guide's method synchronously; raises ``StrategyHang`` if it does
            not return in time.
        limits: limits on the cost of a sequence.
        hang_seconds: time after which a call of a guide counts as a hang.
    """

    def __init__(
        self,
        words: int,
        ends: Iterable[int],
        record: Callable[[Guide, BaseException], None],
        record_call: Callable[[Guide, str, float], None],
        watched: Callable[[Guide, str, Callable[[], None]], None],
        limits: GuideLimits,
        hang_seconds: float,
    ) -> None:
        self._ends = frozenset(ends)
        self._record = record
        self._record_call = record_call
        self._watched = watched
        self._limits = limits
        self._filler = MaskFiller(words, self._ends, limits)
        self._hang_seconds = hang_seconds
        self._worker = WorkerThread("guide masks")
        self._buffer = np.zeros((0, words), np.int32)
        self._pending: MaskStep | None = None

    def start_sequence(self, compiled: CompiledGrammar, output: Sequence[int]) -> GuidedSequence:
        """Create a guided sequence after the tokens of ``output``; it may have a fault."""
        pace = GrammarCostLimit(self._limits.token_seconds, self._limits.ahead_seconds)
        guided = GuidedSequence(compiled, None, pace)  # type: ignore[arg-type]
        self._guarded(guided, lambda: self._restart(guided, output))
        return guided

    def _restart(self, guided: GuidedSequence, output: Sequence[int]) -> None:
        guided.matcher = guided.compiled.start()
        self._accept(guided, output)

    def accept(self, coming: Sequence[tuple[GuidedSequence, int]], *, is_sure: bool = True) -> None:
        """Advance sequences by one token each.

        Args:
            coming: sequences, each with its token.
            is_sure: whether the tokens were sampled under the sequences' masks; otherwise a
                sequence whose matcher rejects its token fails without a fault of its guide.
        """
        remaining = iter(coming)
        one: GuidedSequence | None = None

        def accept_remaining() -> None:
            nonlocal one
            for one, token in remaining:
                if not (one.has_ended or one.has_failed):
                    self._guarded(one, partial(self._accept, one, (token,), is_sure))

        while coming:
            try:
                self._watched(coming[0][0].compiled.guide, "accept", accept_remaining)
            except StrategyHang as hang:
                # The iterator continues with the sequences after the one that hung.
                if one is not None:
                    self._fail(one, hang)
            else:
                return

    def _accept(self, guided: GuidedSequence, tokens: Sequence[int], is_sure: bool = True) -> None:
        count = guided.matcher.accept(tokens)
        guided.pace.credit(len(tokens))
        if count != len(tokens):
            if is_sure:
                raise ValueError(f"accepted {count} of {len(tokens)} tokens that it had allowed")
            guided.fault = _failure(guided.compiled.guide)
        guided.has_ended = bool(tokens) and tokens[-1] in self._ends

    def most_drafts(self, guided: GuidedSequence, among: int) -> int:
        """Return the most drafts of a sequence in a step, as each of them needs a mask.

        Args:
            guided: the sequence.
            among: number of guided sequences that share the step's time limit.
        """
        return int(self._limits.step_seconds / (among * max(guided.pace.mask_seconds, 1e-6)))

    def forced(self, guided: GuidedSequence) -> Sequence[int]:
        """Return the tokens that the grammar forces to come next."""
        found: list[Sequence[int]] = [()]
        if not (guided.has_ended or guided.has_failed):
            self._guarded(guided, lambda: found.append(guided.matcher.forced()))
        return found[-1]

    def _guarded(self, guided: GuidedSequence, call: Callable[[], None]) -> None:
        """Run a call for a sequence, charging its time and recording its faults."""
        began = time.thread_time()
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._fail(guided, error)
        else:
            if self._filler.charge(guided, time.thread_time() - began):
                self._fail(guided, too_slow(self._limits))

    def _fail(self, guided: GuidedSequence, error: BaseException) -> None:
        """Mark a sequence as failed, unless it has failed before."""
        if guided.has_failed:
            return
        if isinstance(error, GuideFailed):
            guided.fault = (INVALID, str(error))
            return
        guided.fault = _failure(guided.compiled.guide)
        self._record(guided.compiled.guide, error)

    # Masks

    def is_quick(self, guided: list[GuidedSequence], drafts: list[list[int]]) -> bool:
        """Whether computing masks within a step is cheaper than in a concurrent thread.

        A thread competes with the layers for cores, and switches of the interpreter lock cost time.
        """
        masks = zip(guided, drafts, strict=True)
        return sum(one.pace.mask_seconds * (1 + len(more)) for one, more in masks) < _QUICK

    def start_fill(self, guided: list[GuidedSequence], drafts: list[list[int]]) -> None:
        """Start computing masks in a thread; matchers must not be used until ``wait_filled``."""
        self._pending = step = self._new_step(guided, drafts)
        self._worker.submit(lambda: self._filler.fill(step))

    @property
    def is_filling(self) -> bool:
        """Whether masks were started and not waited for."""
        return self._pending is not None

    def wait_filled(self) -> MaskStep:
        """Wait for the masks of ``start_fill``."""
        step, self._pending = self._pending, None
        if step is None:
            raise RuntimeError("no masks are being computed")
        if self._worker.wait(self._hang_seconds):
            # The thread cannot record its calls: the accounts are not thread-safe.
            for guide, seconds in step.seconds.items():
                self._record_call(guide, "fill_many", seconds)
            self._settle(step)
            return step
        return self._abandon(step)

    def fill(self, guided: list[GuidedSequence], drafts: list[list[int]]) -> MaskStep:
        """Compute masks synchronously."""
        step = self._new_step(guided, drafts)
        try:
            guide = guided[0].compiled.guide
            self._watched(guide, "fill_many", lambda: self._filler.fill(step))
        except StrategyHang:
            return self._abandon(step)
        self._settle(step)
        return step

    def close(self) -> None:
        """Stop the thread."""
        self._worker.close()

    def _new_step(self, guided: list[GuidedSequence], drafts: list[list[int]]) -> MaskStep:
        needed = len(guided) + sum(map(len, drafts))
        # Reused, because every step needs masks; allocated with room for twice as many.
        if len(self._buffer) < needed:
            self._buffer = np.zeros((2 * needed, self._buffer.shape[1]), np.int32)
        return MaskStep(guided, drafts, self._buffer)

    def _abandon(self, step: MaskStep) -> MaskStep:
        """Fail all sequences of a step whose guide hangs, and leave the buffer to its thread."""
        # The hanging call may still write to the old buffer.
        self._buffer = np.zeros((0, self._buffer.shape[1]), np.int32)
        for guide in {one.compiled.guide for one in step.guided}:
            reason = f"{guide.choice.name} did not compute masks within"
            self._record(guide, StrategyHang(Kind.GUIDE, f"{reason} {self._hang_seconds:g} s"))
        for one in step.guided:
            one.fault = one.fault or _failure(one.compiled.guide)
        return MaskStep(step.guided, step.drafts, self._buffer)

    def _settle(self, step: MaskStep) -> None:
        """Record the faults of a step, in the thread of the steps."""
        for subject, error in step.faults:
            if isinstance(subject, Guide):
                self._record(subject, error)
            else:
                self._fail(subject, error)


def _failure(guide: Guide) -> Fault:
    name = guide.choice.name
    return "strategy_error", f"the guide {name} failed; try again, or ask for free text"
