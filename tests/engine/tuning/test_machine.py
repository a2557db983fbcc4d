"""Machine identification: what torch returns can be stored."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gatewayd_engine.tuning.machine import this_machine
from gatewayd_engine.tuning.table import TuningTable, case


def test_the_versions_that_torch_returns_can_be_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Torch's own version is a class derived from ``str``."""
    chip = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
    machine = this_machine(torch.device("cuda"))
    assert machine.chip == "NVIDIA H200, 132 multiprocessors"
    assert machine.versions["torch"] == torch.__version__
    measured = case("matmul", "bfloat16", m=8, n=6144, k=4096)
    for times in (1, 0):
        table = TuningTable(this_machine(torch.device("cuda")), tmp_path)
        table.chosen(measured, ["torch"], lambda name: 1.0, lambda name: None)
        assert table.measured == times
