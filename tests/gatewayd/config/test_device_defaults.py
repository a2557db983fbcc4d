"""Device defaults: device detection, and sizes that follow from it."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from gatewayd.config import device_defaults
from gatewayd.config.device_defaults import has_gpu, limit_of, sizes
from gatewayd.config.tables import Config
from gatewayd.engines.replicas.launch import engine_config


@pytest.fixture(autouse=True)
def _forget() -> None:
    has_gpu.cache_clear()


@pytest.mark.parametrize(
    ("node", "version", "device"),
    [
        (True, "2.11.0+cu130", "cuda"),
        (True, "2.13.0", "cuda"),
        (True, "2.13.0+cpu", "cpu"),
        (False, "2.13.0", "cpu"),
    ],
)
def test_auto_takes_a_gpu_that_torch_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: bool, version: str, device: str
) -> None:
    gpu = tmp_path / "nvidia0"
    if node:
        gpu.touch()
    monkeypatch.setattr(device_defaults, "_GPU", gpu)
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert sizes(Config().engine).device == device


def test_what_is_not_said_follows_from_the_device() -> None:
    on_a_cpu = Config.model_validate({"engine": {"device": "cpu"}})
    on_a_gpu = Config.model_validate({"engine": {"device": "cuda:1", "max_running": 7}})
    assert (sizes(on_a_cpu.engine).max_running, sizes(on_a_cpu.engine).max_batch_tokens) == (
        64,
        512,
    )
    told = engine_config(on_a_gpu)
    assert (told.device, told.max_running, told.max_batch_tokens) == ("cuda:1", 7, 8192)
    assert told.kv_bytes is None
    assert told.gpu_memory_utilization == 0.9
    assert limit_of(on_a_gpu, "engine", "max_batch_tokens") == 8192
    assert limit_of(on_a_gpu, "engine", "strategy_budget_ms") == 50.0
