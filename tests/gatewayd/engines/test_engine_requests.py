"""Engine requests in flight: bookkeeping without an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gatewayd.engines.backlog import Backlog, QueueLimits
from gatewayd.engines.job import EngineJob
from gatewayd.engines.replicas.engine_requests import SentRequests
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.messages import (
    ERROR,
    Finished,
    PooledOutput,
    StepOutput,
    TokenLogprobs,
)


def test_a_choice_whose_prompt_was_scored_in_part_forgets_it_with_the_engine(
    make_sink: type, make_request: Any
) -> None:
    told, untold = make_sink(), make_sink()
    job = EngineJob.from_request(0, make_request([7, 8, 9]), [told, untold])
    for at, choice in enumerate(job.choices):
        choice.sequence = at
    flight = SentRequests(Backlog(QueueLimits(9, 99)), lambda sequences: None)
    flight.add(job)
    flight.deliver(
        StepOutput(
            stats=EngineStats(),
            prompt_logprobs=[TokenLogprobs(0, 8, -0.5, 1, [8], [-0.5])],
        )
    )
    assert flight.clear_lost() == [job]
    assert not job.is_started, "its client has seen nothing, so it may be sent again"
    job.restart()
    job.restart()
    assert told.calls == ["prompt_logprobs", "restarted"]
    assert untold.calls == []


def test_hidden_states_go_to_their_choice_before_its_tokens_and_are_forgotten_with_the_engine(
    make_sink: type, make_request: Any
) -> None:
    sinks = [make_sink(), make_sink()]
    jobs = [
        EngineJob.from_request(at, make_request([7, 8]), [sink]) for at, sink in enumerate(sinks)
    ]
    flight = SentRequests(Backlog(QueueLimits(9, 99)), lambda sequences: None)
    for at, job in enumerate(jobs):
        job.choices[0].sequence = at
        flight.add(job)
    flight.deliver(
        StepOutput(
            stats=EngineStats(),
            pooled=[
                PooledOutput(0, 2, b"1234"),
                PooledOutput(1, 1, b"1234"),
                PooledOutput(9, 1, b"1234"),
            ],
            sequences=np.array([0], np.int64).tobytes(),
            tokens=np.array([5], np.int32).tobytes(),
        )
    )
    assert [sink.calls for sink in sinks] == [["pooled", "tokens"], ["pooled"]]
    jobs[1].restart()
    assert sinks[1].calls == ["pooled", "restarted"]


def test_a_preemption_is_told_to_its_choice_alone(make_sink: type, make_request: Any) -> None:
    sinks = [make_sink(), make_sink()]
    job = EngineJob.from_request(0, make_request([7]), sinks)
    for at, choice in enumerate(job.choices):
        choice.sequence = at
    flight = SentRequests(Backlog(QueueLimits(9, 99)), lambda sequences: None)
    flight.add(job)
    flight.deliver(StepOutput(stats=EngineStats(), preempted=[1, 99, 1]))
    assert [sink.calls for sink in sinks] == [[], ["preempted", "preempted"]]


def test_a_processor_out_of_service_is_503_and_logged_once(
    make_sink: type, make_request: Any, caplog: pytest.LogCaptureFixture
) -> None:
    flight = SentRequests(Backlog(QueueLimits(9, 99)), lambda sequences: None)
    words = "the logits processor shy is out of service; send the request without it"
    for at in range(4):
        sink = make_sink()
        job = EngineJob.from_request(at, make_request([7]), [sink])
        job.choices[0].sequence = at
        flight.add(job)
        flight.deliver(
            StepOutput(
                stats=EngineStats(),
                finished=[Finished(at, ERROR, error=("strategy_error", words))],
            )
        )
        assert (sink.error.status, sink.error.code) == (503, "strategy_unavailable")
        assert str(sink.error) == words
    assert [words in record.getMessage() for record in caplog.records] == [True]


def test_several_tokens_of_a_step_come_at_once_each_with_its_own_logprobs(
    make_sink: type, make_request: Any
) -> None:
    sinks = [make_sink(), make_sink(), make_sink()]
    job = EngineJob.from_request(0, make_request([7]), sinks)
    for at, choice in enumerate(job.choices):
        choice.sequence = at
    flight = SentRequests(Backlog(QueueLimits(9, 99)), lambda sequences: None)
    flight.add(job)
    told: list[tuple[int, list[int], list[float] | None]] = []
    for at, sink in enumerate(sinks):

        def tokens(ids: Any, logprobs: Any, at: int = at) -> None:
            said = None if logprobs is None else [each.logprob for each in logprobs]
            told.append((at, list(ids), said))

        sink.tokens = tokens
    flight.deliver(
        StepOutput(
            stats=EngineStats(),
            sequences=np.array([0, 0, 0, 2, 1, 1], np.int64).tobytes(),
            tokens=np.array([5, 6, 7, 8, 9, 5], np.int32).tobytes(),
            logprobs=[TokenLogprobs(0, t, -t, 1, [t], [-t]) for t in (5, 6, 7)],
        )
    )
    assert told == [(0, [5, 6, 7], [-5, -6, -7]), (2, [8], None), (1, [9, 5], None)]
