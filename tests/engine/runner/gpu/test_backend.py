"""Backend selection: by device, with a message where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda._utils import _get_device_index

from gatewayd_engine.core.build import assemble
from gatewayd_engine.process.config import EngineConfig, EngineConfigError, StrategyChoice
from gatewayd_engine.runner import backend
from gatewayd_engine.runner.backend import CpuBackend, DeviceBackend, backend_for
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from tests.engine.core.prompts import runner_of

Make = Callable[..., Any]
FCFS, LRU, RECOMPUTE = (StrategyChoice(name) for name in ("fcfs", "lru", "recompute"))


def config(model: str = "", **fields: Any) -> EngineConfig:
    return EngineConfig(model, FCFS, None, LRU, RECOMPUTE, **fields)


def chosen(**fields: Any) -> backend.Backend:
    return backend_for(config(**fields), lambda stage, part: None)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[torch.device]]:
    """Lets torch find so many; which of them was made the current one is taken down."""

    def have(count: int) -> list[torch.device]:
        current: list[torch.device] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

        def set_device(device: Any) -> None:
            # As torch does: a device without a number is refused.
            current.append(torch.device("cuda", _get_device_index(device)))

        monkeypatch.setattr(torch.cuda, "set_device", set_device)
        monkeypatch.setattr(backend, "choose", lambda device: None)
        for name in ("CudaCapture", "tuning_of"):
            monkeypatch.setattr(backend, name, lambda device: None)
        return current

    return have


@pytest.mark.parametrize(
    ("count", "device"), [(0, "cuda"), (0, "cuda:0"), (1, "cuda:1"), (2, "cuda:5")]
)
def test_a_device_that_is_not_there_is_named(
    gpus: Callable[[int], list[torch.device]], count: int, device: str
) -> None:
    current = gpus(count)
    with pytest.raises(EngineConfigError) as raised:
        chosen(device=device)
    assert str(raised.value) == (
        f"device is {device!r}, but torch {torch.__version__} finds {count} GPUs; install torch for"
        " CUDA and its driver, or take another device"
    )
    assert current == []


@pytest.mark.parametrize(("count", "device"), [(1, "cuda"), (1, "cuda:0"), (2, "cuda:1")])
def test_a_device_that_is_there_computes(
    gpus: Callable[[int], list[torch.device]], count: int, device: str
) -> None:
    current = gpus(count)
    found = chosen(device=device)
    assert isinstance(found, DeviceBackend)
    assert found.dtype == torch.bfloat16
    assert current == [torch.device("cuda", torch.device(device).index or 0)]


def test_an_engine_starts_on_a_machine_that_cannot_be_autotuned(
    gpus: Callable[[int], list[torch.device]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def breaks(device: torch.device) -> Any:
        raise TypeError("another version")

    gpus(1)
    monkeypatch.setattr(backend, "tuning_of", breaks)
    assert chosen(device="cuda").tuning_file == ""
    assert "autotuning is disabled after an error" in caplog.text


def test_a_cpu_asks_for_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", None)
    found = chosen()
    assert isinstance(found, CpuBackend)
    assert found.dtype == torch.float32


def test_a_cpu_keeps_a_gibibyte_for_pages_unless_told_otherwise() -> None:
    def never() -> Any:
        raise AssertionError("a CPU's memory is not measured")

    assert chosen().kv_bytes(never) == 1 << 30
    assert chosen(kv_bytes=12345).kv_bytes(never) == 12345


def test_an_engine_on_a_device_that_is_not_there_does_not_start(
    checkpoint: Callable[[str], Path], gpus: Callable[[int], list[torch.device]]
) -> None:
    gpus(0)
    asked = config(str(checkpoint("llama")), device="cuda")
    with pytest.raises(EngineConfigError, match="device is 'cuda'"):
        assemble(asked, PluginHost(Catalog.installed()), lambda stage, part: None)


def test_runners_of_devices_and_of_fused_steps_overlap(
    make_device_engine: Make, make_engine: Make
) -> None:
    assert runner_of(make_device_engine()).overlaps
    assert runner_of(make_engine()).overlaps
    assert not runner_of(make_engine(cpu_kernels="torch")).overlaps
