"""Choice of the number of threads of each step by recent measurements.

Two threads halve the time of a step on an idle machine. Once another process needs a core, every
operation of torch waits for the thread that was descheduled, and the step takes three times as long
as on one thread; compiled kernels wait only while that thread has a part of the work. Which case
applies cannot be known in advance, so it is measured: steps of similar size are compared, and the
slower choice is retried at intervals.

Means decide, over several turns of the kernel's scheduler: of two processes on a core each runs for
some milliseconds at a time, so that most short steps are fast on two threads, and one in ten waits
for ten others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_WEIGHT = 0.1
"""Weight of the newest step in the running average, at most."""
_SPAN = 0.05
"""Seconds of steps in the running average, at least: some turns of two processes on a core."""
_OUTLIER = 1.5
"""A step counts for at most this multiple of the average: a few slow ones in a row, whenever the
gateway has some milliseconds of work, do not mean a busy machine."""
_TURN = 0.008
"""Seconds by which a step may exceed the average in any case: a thread's wait for its core."""
_TRIAL = 3
"""Steps of a trial, at least; their mean counts: threads may wait for one that has no processor."""
_TRIAL_SPAN = 0.016
"""Seconds of a trial, at least."""
_RARITY = 8
"""Steps from a trial to the next, at least, for each step beyond ``_TRIAL``."""
_LARGE = 128
"""Larger steps, mainly prefill, take too long for trials: they use the last best choice."""
_FIRST_RETRY = 16
_LAST_RETRY = 512
"""Steps until the slower choice is retried; doubled each time it is clearly slower."""


@dataclass(slots=True)
class _Record:
    """Measurements of steps of one size class.

    Attributes:
        seconds: seconds per token, by number of threads; of the best a running average.
        on_trial: number of threads that is being tried, 0 for none.
        trial: measurements of the trial so far.
        until_retry: steps until the slower choice is retried.
        interval: initial value of the current ``until_retry``.
        least: the lowest value of ``until_retry`` after a trial, by the steps of the last one.
    """

    seconds: dict[int, float] = field(default_factory=dict)
    on_trial: int = 0
    trial: list[float] = field(default_factory=list)
    until_retry: int = _FIRST_RETRY
    interval: int = _FIRST_RETRY
    least: int = 0


class ThreadTuning:
    """Choice between one thread and all of them, step by step.

    Args:
        threads: number of all threads.
        use: sets the number of threads; other code may have changed it since the last step.
        clock: returns seconds.
    """

    def __init__(
        self,
        threads: int,
        use: Callable[[int], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        # All threads first: the first steps of a size are trials of each.
        self._candidates = (threads, 1) if threads > 1 else (1,)
        self._use = use
        self._clock = clock
        self._records: dict[int, _Record] = {}
        self._current = 0
        self._favorite = threads
        self._began = 0.0
        self._num_tokens = 1

    def start_step(self, num_tokens: int) -> None:
        """Set the number of threads for a step of so many tokens, and start measuring."""
        self._num_tokens = num_tokens
        if num_tokens > _LARGE:
            choice = self._favorite
        else:
            # Size classes are powers of two, as time per token depends on the number of tokens.
            choice = self._choose(self._records.setdefault(num_tokens.bit_length(), _Record()))
        self._use(choice)
        self._current = choice
        self._began = self._clock()

    def end_step(self) -> None:
        """Record the duration of the step."""
        if self._num_tokens > _LARGE:
            return
        seconds = (self._clock() - self._began) / self._num_tokens
        record = self._records[self._num_tokens.bit_length()]
        if record.on_trial:
            self._end_trial_step(record, seconds)
            return
        before = record.seconds[self._current]
        seconds = min(seconds, max(_OUTLIER * before, before + _TURN / self._num_tokens))
        weight = min(_WEIGHT, before * self._num_tokens / _SPAN)
        record.seconds[self._current] = before + weight * (seconds - before)
        self._favorite = self._best(record)
        if self._favorite != self._current:
            # The conditions under which the other choice was slower may have changed.
            record.interval = record.until_retry = max(_FIRST_RETRY, record.least)

    def _end_trial_step(self, record: _Record, seconds: float) -> None:
        record.trial.append(seconds)
        spent = sum(record.trial) * self._num_tokens
        if len(record.trial) < _TRIAL or spent < _TRIAL_SPAN:
            return
        record.seconds[record.on_trial] = sum(record.trial) / len(record.trial)
        record.least = _RARITY * (len(record.trial) - _TRIAL)
        record.until_retry = max(record.until_retry, record.least)
        record.on_trial, record.trial = 0, []
        self._favorite = self._best(record)

    def _best(self, record: _Record) -> int:
        return min(record.seconds, key=record.seconds.__getitem__)

    def _choose(self, record: _Record) -> int:
        if not record.on_trial:
            record.on_trial = self._next_trial(record)
        return record.on_trial or self._best(record)

    def _next_trial(self, record: _Record) -> int:
        """Return the number of threads to try now; 0 for none."""
        for candidate in self._candidates:
            if candidate not in record.seconds:
                return candidate
        # Counted in steps of this size class that are no trials.
        record.until_retry -= 1
        if record.until_retry > 0 or len(self._candidates) == 1:
            return 0
        best, loser = sorted(self._candidates, key=record.seconds.__getitem__)
        # Close results are rechecked soon; clear ones at growing intervals.
        is_close = record.seconds[loser] < 1.2 * record.seconds[best]
        record.interval = _FIRST_RETRY if is_close else min(2 * record.interval, _LAST_RETRY)
        record.until_retry = record.interval
        return loser
