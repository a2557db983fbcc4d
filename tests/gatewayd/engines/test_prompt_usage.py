"""Prompt usage: as reported by engines, each token once, whenever the request ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gatewayd.engines.backlog import Backlog, QueueLimits
from gatewayd.engines.job import EngineJob
from gatewayd.engines.prompt_usage import PromptUsage
from gatewayd.engines.replicas.engine_requests import SentRequests
from gatewayd.engines.request_handle import JobHandle
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.frames import FrameError
from gatewayd_engine.process.messages import STOP, Admitted, Finished, StepOutput
from gatewayd_engine.process.time_causes import Cause


class Told:
    """A job at an engine, which tells of it."""

    def __init__(self, sinks: list[Any], request: Any) -> None:
        self.flight = SentRequests(Backlog(QueueLimits(9, 99_999)), lambda sequences: None)
        self.job = EngineJob.from_request(0, request, sinks)
        self.told: list[PromptUsage] = []
        self.send()

    def send(self, first: int = 0) -> None:
        for at, choice in enumerate(self.job.choices):
            choice.sequence = first + at
        self.flight.add(self.job)

    def ask(self) -> None:
        JobHandle(self, self.job).on_usage_final(self.told.append)

    def cancel(self, job: EngineJob, index: int | None) -> None:
        for choice in job.choices:
            choice.is_over = True
            self.flight.remove(choice)

    def step(self, *chunks: tuple[int, int], **columns: Any) -> None:
        """A step with chunks: of whom, and where they end."""
        self.flight.deliver(
            StepOutput(
                stats=EngineStats(),
                moved=np.array([of for of, _ in chunks], np.int64).tobytes(),
                causes=bytes([Cause.PREFILL] * len(chunks)),
                shares=np.zeros(len(chunks), np.float32).tobytes(),
                reached=np.array([end for _, end in chunks], np.int32).tobytes(),
                **columns,
            )
        )

    def end(self, *ended: tuple[int, float, int, int, int], **columns: Any) -> None:
        """Some have ended: of each its id, seconds, prompt, cached and generated tokens."""
        self.step(
            ended=np.array([one[0] for one in ended], np.int64).tobytes(),
            spent=np.array([one[1] for one in ended]).tobytes(),
            counts=np.array([one[2:] for one in ended], np.int32).T.tobytes(),
            **columns,
        )


def test_one_that_leaves_in_its_first_step_took_what_that_computed(
    make_sink: type, make_request: Any
) -> None:
    here = Told([make_sink()], make_request(range(1500)))
    here.cancel(here.job, None)
    here.ask()
    assert here.told == [], "the engine has not said"
    here.step((0, 512), admitted=[Admitted(0, 64, 0.1)])
    assert here.told == []
    here.end((0, 0.25, 512, 64, 0))
    assert here.told == [PromptUsage(0.25, 512, 64, (0,))]


def test_what_a_lost_engine_had_told_of_one_that_left_counts(
    make_sink: type, make_request: Any
) -> None:
    here = Told([make_sink()], make_request(range(1500)))
    here.cancel(here.job, None)
    here.ask()
    here.step((0, 512), admitted=[Admitted(0, 64, 0.1)])
    here.flight.clear_lost()
    assert here.told == [PromptUsage(0.0, 512, 64, (0,))]


def test_one_whose_end_came_with_a_step_behind_it_took_that_as_well(
    make_sink: type, make_request: Any
) -> None:
    """Where steps overlap, an end token is seen when the next step is on its way."""
    sink = make_sink()
    here = Told([sink], make_request(range(40)))
    here.step((0, 40), admitted=[Admitted(0, 0, 0.1)])
    here.step(finished=[Finished(0, STOP, 2)])
    here.ask()
    assert (sink.reason, here.told) == ("stop", [])
    here.end((0, 0.5, 40, 0, 3))
    assert here.told == [PromptUsage(0.5, 40, 0, (3,))]


def test_what_starts_over_on_another_engine_counts_once(make_sink: type, make_request: Any) -> None:
    sink = make_sink()
    here = Told([sink], make_request(range(100)))
    here.step((0, 60), admitted=[Admitted(0, 0, 0.1)])
    here.flight.clear_lost()
    here.job.restart()
    here.send(7)
    here.step((7, 96), admitted=[Admitted(7, 32, 0.2)])
    here.ask()
    here.end((7, 0.5, 100, 32, 9), finished=[Finished(7, STOP, 2)])
    assert here.told == [PromptUsage(0.5, 100, 0, (9,))], "the first engine had found nothing"
    assert sink.reached == [60, 96]


def test_several_answers_took_their_prompt_once(make_sink: type, make_request: Any) -> None:
    here = Told([make_sink(), make_sink(), make_sink()], make_request(range(100)))
    here.step((0, 100), admitted=[Admitted(0, 16, 0.1)])
    here.step((1, 100), (2, 100), admitted=[Admitted(1, 99, 0.1), Admitted(2, 99, 0.1)])
    here.cancel(here.job, None)
    here.ask()
    here.end((0, 0.5, 100, 16, 4), (1, 0.25, 100, 99, 3))
    assert here.told == []
    here.end((2, 0.25, 100, 99, 3))
    assert here.told == [PromptUsage(1.0, 100, 16, (4, 3, 3))]


def test_an_heir_of_a_prompt_computes_it_for_whoever_left_before(
    make_sink: type, make_request: Any
) -> None:
    here = Told([make_sink(), make_sink()], make_request(range(100)))
    first, heir = here.job.choices
    first.is_over = True
    here.flight.remove(first)
    here.end((0, 0.0, 0, 0, 0))
    here.step((1, 100), admitted=[Admitted(1, 48, 0.1)])
    here.ask()
    here.end((1, 0.5, 100, 48, 5), finished=[Finished(1, STOP, 2)])
    assert here.told == [PromptUsage(0.5, 100, 48, (0, 5))]
    assert heir.is_settled


def test_columns_that_contradict_each_other_are_nonsense(
    make_sink: type, make_request: Any
) -> None:
    here = Told([make_sink()], make_request(range(9)))
    ids = np.array([0], np.int64).tobytes()
    some: dict[str, Any] = {"ended": ids, "spent": np.zeros(1).tobytes()}
    for wrong in (b"", bytes(4), bytes(8), bytes(16), bytes(13)):
        with pytest.raises(FrameError):
            here.step(**some, counts=wrong)
    here.step(**some, counts=bytes(12))
