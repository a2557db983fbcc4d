"""Kernel compilation: for the launched specialization, and few others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner import backend
from gatewayd_engine.runner.gpu import warmup
from gatewayd_engine.runner.gpu.drafter_graphs import DrafterLaunches
from tests.engine.runner.gpu import conftest

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
@pytest.mark.parametrize(
    ("capture_is", "chosen", "modes"),
    [
        ("off", True, {"plain": [False], "rest": [False]}),
        ("auto", False, {"plain": [False], "rest": [False]}),
        ("auto", True, {"plain": [False, True], "rest": [True]}),
    ],
)
def test_only_what_choosing_needs_is_launched_in_both_ways(
    make_device_engine: Make,
    monkeypatch: pytest.MonkeyPatch,
    capture_is: str,
    chosen: bool,
    modes: dict[str, list[bool]],
) -> None:
    """A kernel that is launched early is compiled anew, which takes minutes for all of them."""
    kernels, launched = TorchKernels(), defaultdict(list)

    def noted(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def note(*args: Any) -> Any:
            batch = args[1] if name == "batch" else None
            which = name if batch is None else (batch.drafts is not None, *batch.counts)
            launched[which].append(kernels.launches_early)
            return real(*args)

        return note

    def choose(self: Any, runner: Any, sizes: list[int]) -> None:
        kernels.launches_early = chosen

    monkeypatch.setattr(conftest, "TorchKernels", lambda: kernels)
    monkeypatch.setattr(backend.DeviceBackend, "_choose", choose)
    for owner, attribute, name in (
        (warmup, "_launch", "batch"),
        (warmup, "_compile_rare", "rare"),
        (DrafterLaunches, "compile", "drafter"),
        (DrafterLaunches, "close", "started"),
    ):
        monkeypatch.setattr(owner, attribute, noted(getattr(owner, attribute), name))
    make_device_engine(max_running=4, capture=capture_is, drafter=StrategyChoice("ngram"))
    plain = [(False, *counts) for counts in ([32], [1, 32], [1])]
    assert {*plain, "rare", "drafter", "started"} < launched.keys()
    # With a prompt, and each width.
    assert len(launched) == len(plain) + 3 + 1 + 7
    for which, found in launched.items():
        assert found == modes["plain" if which in plain else "rest"], which
