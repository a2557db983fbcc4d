"""Engines with matrices of few bits on a device's runner: tokens are those of the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.config import StrategyChoice
from gatewayd_engine.kernels.room import MOST_LINES
from gatewayd_engine.kernels.twins import TorchKernels
from tests.engine.core.prompts import PROMPTS
from tests.engine.core.small import small
from tests.engine.core.test_formats import catalog, written
from tests.plugins.quantized.writers import WRITERS

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
AUTO = StrategyChoice("auto")
FORMATS = ("awq", "gptq_v2 with an order", "packed with zeros", "floats of 4 bits", "fp8 in blocks")
LONG = [*range(20, 20 + 3 * MOST_LINES)]


def answers(engine: Any) -> list[list[int]]:
    """Of short prompts, decoded together, and of one that takes more lines than codes are for."""
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in [*PROMPTS, LONG]]
    done = engine.run()
    return [done[i].tokens for i in ids]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which ways a product has gone."""
    ways: set[str] = set()
    for name in ("grouped_mm", "expand"):
        does = getattr(TorchKernels, name)

        def noting(*args: Any, name: str = name, does: Any = does) -> None:
            ways.add(name)
            does(*args)

        monkeypatch.setattr(TorchKernels, name, noting)
    return ways


@pytest.mark.parametrize("name", FORMATS)
def test_tokens_of_a_quantized_checkpoint_are_the_cpus(
    name: str, make_engine: Make, make_device_engine: Make, both: set[str], tmp_path: Path
) -> None:
    folder = tmp_path / "made"
    written(small(), folder, WRITERS[name])
    fields = {"catalog": catalog(), "quantizer": AUTO}
    device = make_device_engine(folder, **fields)
    cpu = make_engine(folder, **fields)
    assert answers(device) == answers(cpu)
    assert both == {"grouped_mm", "expand"}
    floats = make_engine()
    assert device.info.weight_bytes < floats.info.weight_bytes


def test_captured_steps_of_few_lines_allocate_no_room(
    make_device_engine: Make, device_runner: Callable[[Any], Any], tmp_path: Path
) -> None:
    """Where products write is as large at the end as when the model was loaded."""
    folder = tmp_path / "made"
    written(small(), folder, WRITERS["awq"])
    engine = make_device_engine(folder, catalog=catalog(), quantizer=AUTO)
    layer = device_runner(engine)._decoder._layers[0]
    room = layer._attention.out._room
    before = [getattr(room, name).data_ptr() for name in room.__slots__]
    answers(engine)
    assert [getattr(room, name).data_ptr() for name in room.__slots__] == before
