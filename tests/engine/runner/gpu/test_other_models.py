"""Models beside the served one: captures and choices stay separate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.quantized.scratch import MOST_LINES
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.device_parts import DeviceParts
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.backend import DeviceBackend
from gatewayd_hooks.strategy import Kind
from tests.engine.core.models.test_formats import catalog, written
from tests.engine.core.small_model import small
from tests.engine.core.speculation.test_draft_heads import chats
from tests.engine.kernels.weights import grouped
from tests.engine.runner.gpu import conftest
from tests.engine.runner.gpu.strict_capture import Recorded
from tests.engine.runner.gpu.test_quantized import addresses
from tests.plugins.quantized.writers import WRITERS

Make = Callable[..., Any]
captured = pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)


@pytest.fixture
def capture() -> Recorded:
    """In place of the one that launches each time."""
    return Recorded()


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> list[DeviceBackend]:
    """Those of the engines that are made."""
    made: list[DeviceBackend] = []

    def noted(*args: Any) -> DeviceBackend:
        made.append(DeviceBackend(*args))
        return made[-1]

    monkeypatch.setattr(conftest, "DeviceBackend", noted)
    return made


@captured
@pytest.mark.usefixtures("small_model")
def test_a_model_that_is_loaded_later_multiplies_elsewhere(
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
    backends: list[DeviceBackend],
    capture: Recorded,
    tmp_path: Path,
) -> None:
    """Replays have the addresses of memory that would be let go if it grew."""
    folder = tmp_path / "made"
    written(small(), folder, WRITERS["awq"])
    engine = make_device_engine(
        folder, catalog=catalog(), quantizer=StrategyChoice("auto"), prefix_cache=None
    )
    # So many lines are multiplied with numbers, which lie in the scratch.
    prompt = [*range(20, 20 + 3 * MOST_LINES)]
    wanted = engine.generate(prompt, max_tokens=4, ignore_eos=True)
    room = device_runner(engine)._decoder.layers[0].attention.out._room
    before, size = addresses(room), room.dense.numel()
    parts = backends[-1].draft_parts()
    # Split, and larger than any of the served model.
    large: Any = parts.linear(grouped("offsets", 1024, 4096, 128), None, torch.float32)
    large(torch.randn(MOST_LINES + 1, 4096))
    assert large._room.dense.numel() > size
    assert large._room.partial.numel() > 0
    assert addresses(room) == before
    capture.replays.clear()
    assert engine.generate(prompt, max_tokens=4, ignore_eos=True) == wanted
    assert capture.replays


def test_what_is_captured_with_does_not_grow() -> None:
    parts = DeviceParts(TorchKernels())
    beside = parts.draft_parts()
    first: Any = parts.served.linear(grouped("offsets", 64, 256, 4), None, torch.float32)
    second: Any = beside.linear(grouped("offsets", 128, 512, 8), None, torch.float32)
    assert first._room is second._room
    parts.seal()
    with pytest.raises(RuntimeError, match="in use by captured steps"):
        beside.linear(grouped("offsets", 64, 256, 4), None, torch.float32)
    later: list[Any] = [
        parts.draft_parts().linear(grouped("offsets", 256, 512, 8), None, torch.float32)
        for _ in range(2)
    ]
    assert len({id(linear._room) for linear in (first, *later)}) == 3


@captured
def test_a_draft_model_keeps_its_norms_and_gates_apart(
    make_device_engine: Make, backends: list[DeviceBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was timed and compared is a step of the served model."""
    fused: set[int] = set()
    real: Any = TorchKernels.norm_mm

    def noted(self: Any, x: torch.Tensor, *rest: Any) -> None:
        fused.add(x.shape[1])
        real(self, x, *rest)

    monkeypatch.setattr(TorchKernels, "norm_mm", noted)
    engine = make_device_engine(
        max_running=2,
        max_model_len=256,
        capture="off",
        drafter=StrategyChoice("draft_model", {"min_confidence": 0.0}),
        spec_controller=StrategyChoice("fixed", {"drafts": 3}),
    )
    served = engine.core._runner._decoder.spec.hidden_size
    model: Any = engine.core.strategies.bound[Kind.DRAFTER]
    assert model._model._decoder.spec.hidden_size != served
    backends[-1]._parts.served.fusion.lines.update(range(1, 17))
    engine.generate(chats()[0][-60:], max_tokens=14, ignore_eos=True)
    assert engine.core.stats.draft_tokens > 5
    assert fused == {served}
