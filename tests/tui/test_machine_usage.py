"""Machine usage: GPUs or processes on the overview; old recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatewayd.wire.snapshot import Snapshot
from gatewayd_tui.machine_usage import usage_of
from gatewayd_tui.recording import line_of
from tests.tui.conftest import Watching, text_of
from tests.tui.fake_daemon import FakeDaemon
from tests.tui.samples import engine, snapshot
from tests.tui.test_top import told

GIB = 1 << 30
GPU: dict[str, Any] = {
    "device": "cuda",
    "device_used": 60 * GIB,
    "device_total": 80 * GIB,
    "device_utilization": 0.83,
    "resident_bytes": 9 * GIB,
    "cpu_cores": 1.0,
}
CPU: dict[str, Any] = {"resident_bytes": 3 * GIB // 2, "cpu_cores": 1.75}


@pytest.mark.parametrize(
    ("engines", "shown"),
    [
        ([GPU], ("60/80G", "83%")),
        ([GPU, GPU | {"index": 1}], ("60/80G", "83%")),  # one GPU is counted once
        ([GPU, GPU | {"device": "cuda:1", "device_utilization": 0.17}], ("120/160G", "50%")),
        ([GPU | {"device_utilization": None}], ("60/80G", "-")),
        ([CPU, CPU], ("3.0G", "3.5")),
        ([{"resident_bytes": None, "cpu_cores": None}], ("-", "-")),
    ],
)
def test_what_engines_take_is_added_up(
    engines: list[dict[str, Any]], shown: tuple[str, str]
) -> None:
    found = usage_of([engine(**one) for one in engines])
    assert (found.memory, found.work) == shown


@pytest.mark.parametrize(
    ("fields", "words"),
    [(GPU, ["gpu memory", "60/80G", "gpu busy", "83%"]), (CPU, ["1.5G", "cpu cores", "1.8"])],
)
async def test_the_overview_has_memory_and_use(
    daemon: FakeDaemon, watching: Watching, fields: dict[str, Any], words: list[str]
) -> None:
    daemon.snapshot = snapshot(engines=[engine(**fields)])
    async with watching((80, 24)) as (console, _):
        (shown,) = [line for line in text_of(console).splitlines() if words[0] in line]
    assert [word for word in words if word not in shown] == []


def test_scripts_are_told_and_old_recordings_open(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    new = json.loads(line_of(snapshot(engines=[engine(**GPU)])))
    old = json.loads(line_of(snapshot(1)))
    for name in GPU:
        if name != "device":
            del old["engines"][0][name]
    file.write_text(json.dumps(new) + "\n" + json.dumps(old) + "\n")
    out = told("top", "--json", "--snapshot", file, "--interval", "0.1").output
    first, second = (msgspec.json.decode(line, type=Snapshot) for line in out.splitlines())
    assert first.engines[0].device_used == 60 * GIB
    assert second.engines[0].device_total is second.engines[0].cpu_cores is None
    shown = told("top", "--snapshot", file, "--interval", "0.1").output
    rows = [line for line in shown.splitlines() if line.startswith("0 ")]
    assert ["60/80G" in row and "83%" in row for row in rows] == [True, False]
