"""Heartbeat: the meaning of an engine's silence, by a manual clock."""

from __future__ import annotations

import pytest

from gatewayd.engines.replicas.heartbeat import Heartbeat
from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd_engine.process.messages import ModelInfo

MODEL = ModelInfo(
    architecture="Fake",
    num_parameters=1,
    dtype="float32",
    device="cpu",
    vocab_size=10,
    max_model_len=10,
    eos_token_ids=[0],
    num_pages=1,
    page_size=16,
    max_running=1,
    max_batch_tokens=1,
    strategies={},
)


def test_an_engine_that_loads_may_be_silent_for_longer_than_one_that_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("gatewayd.engines.replicas.heartbeat.time.monotonic", lambda: now[0])
    pulse = Heartbeat(SilenceLimits(load_seconds=60.0, hang_seconds=10.0))

    def is_gone_after(seconds: float) -> bool:
        pulse.record_message()
        now[0] += seconds
        return pulse.is_gone(MODEL)

    pulse.reset()
    assert not is_gone_after(59)
    pulse.record_ready()
    assert is_gone_after(11)
    pulse.reset()
    assert not is_gone_after(59)
    assert is_gone_after(61)
