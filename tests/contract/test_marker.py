"""Strategy marker: shared memory names the running strategy to another process."""

from __future__ import annotations

import subprocess
import sys

from gatewayd_hooks.host.marker import Marker

CHILD = """
import os, sys
from gatewayd_hooks.host.marker import Marker
marker = Marker.attached(sys.argv[1])
marker.number("eviction.lru")
marker.bytes[0] = marker.number("scheduler.fcfs")
os._exit(9)
"""


def test_what_a_process_wrote_is_there_when_it_has_gone() -> None:
    marker = Marker.shared()
    assert marker.running() is None
    subprocess.run([sys.executable, "-c", CHILD, marker.path], check=False)
    assert marker.running() == "scheduler.fcfs"
    marker.clear()
    assert marker.running() is None
    marker.close()


def test_a_process_that_ends_while_it_loads_has_said_what() -> None:
    marker = Marker.shared()
    assert marker.loaded() is None
    program = (
        "import os, sys; from gatewayd_hooks.host.marker import Marker\n"
        "marker = Marker.attached(sys.argv[1])\n"
        "marker.loading('drafter.sound'); marker.loading('')\n"
        "marker.loading('scheduler.' + 'x' * 60); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program, marker.path], check=False)
    assert marker.loaded() == "scheduler." + "x" * 52
    assert marker.running() is None
    marker.loading("")
    assert marker.loaded() is None
    marker.close()


def test_out_of_reach_is_no_error_and_many_names_fit() -> None:
    marker = Marker.attached("/nowhere")
    numbers = [marker.number(f"scheduler.s{k}") for k in range(300)]
    assert numbers[:254] == list(range(1, 255))
    assert set(numbers[254:]) == {255}
    marker.bytes[0] = 7
    assert marker.running() == "scheduler.s6"
