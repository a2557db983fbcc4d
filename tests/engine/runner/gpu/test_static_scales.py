"""Static scales on a device runner: tokens equal the CPU's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.model.linears.w8a8_gpu import Fp8DeviceLinear, Int8DeviceLinear
from tests.engine.core.models.test_formats import catalog
from tests.engine.core.models.test_static_scales import PLAIN, STATIC, checkpoint_of, with_scales
from tests.engine.core.prompts import PROMPTS
from tests.engine.core.small_model import small
from tests.gpu.engines import follow, greedy

Make = Callable[..., Any]
CLOSE = 0.5
"""How far apart two logits may be and still change places, where a number was between two codes."""
SOUND = 0.05
"""A scale that cuts little."""


@pytest.mark.parametrize(
    ("name", "kind"), [("fp8, packed", Fp8DeviceLinear), ("integers", Int8DeviceLinear)]
)
def test_static_inputs(
    name: str,
    kind: type,
    make_engine: Make,
    make_device_engine: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "made"
    checkpoint_of(name, folder, SOUND)
    fields = {"catalog": catalog(), "quantizer": STATIC[name][2]}
    static: set[bool] = set()
    multiply = kind._multiply  # type: ignore[attr-defined]

    def noting(self: Any, *given: Any) -> None:
        static.add(self.is_static)
        multiply(self, *given)

    monkeypatch.setattr(kind, "_multiply", noting)
    engine = make_device_engine(folder, **fields)
    reference = greedy(make_engine(folder, **fields), PROMPTS, 10)
    assert len(follow(engine, PROMPTS, reference, CLOSE)) <= 3
    assert static == {True}


def test_scales_of_keys_and_values(
    make_engine: Make, make_device_engine: Make, tmp_path: Path
) -> None:
    folder = with_scales(Path(shutil.copytree(small(), tmp_path / "made")), ("k_scale", "v_scale"))
    engine = make_device_engine(folder, kv_codec=PLAIN)
    reference = greedy(make_engine(folder, kv_codec=PLAIN), PROMPTS, 10)
    others = greedy(make_engine(small(), kv_codec=PLAIN), PROMPTS, 10)
    assert [one.tokens for one in reference] != [one.tokens for one in others]
    assert len(follow(engine, PROMPTS, reference, CLOSE)) <= 3
