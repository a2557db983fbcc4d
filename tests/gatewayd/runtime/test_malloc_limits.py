"""Malloc limits: memory freed by large jobs returns to the system."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from gatewayd.runtime import malloc_limits

JOB = """
import asyncio, random, sys
from gatewayd.runtime import malloc_limits
from gatewayd.text.tokenizer import Tokenizer

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

async def main(tokenizer, text):
    before = resident()
    await asyncio.gather(*(
        tokenizer.run_by_size(len(text), lambda: len(tokenizer.encode(text))) for _ in range(6)
    ))
    return resident() - before

malloc_limits.limit_malloc()
text = " ".join(str(random.random()) for _ in range(30_000))
print(asyncio.run(main(Tokenizer(open(sys.argv[1]).read()), text)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, and glibc")
def test_long_texts_leave_no_memory_behind() -> None:
    """600 kB of digits: 120 MiB each while it is encoded, and 125 to 160 kept without a trim."""
    file = Path(__file__).parents[3] / "engine/gatewayd_engine/models/nano/tokenizer.json"
    grown = subprocess.check_output([sys.executable, "-c", JOB, str(file)])
    assert int(grown) < 64 << 20


def test_giving_back_takes_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 ms each, asked for all the time; and the last one is not forgotten."""
    began: list[float] = []
    ended: list[float] = []

    def trim(_: int) -> None:
        began.append(time.monotonic())
        time.sleep(0.04)
        ended.append(time.monotonic())

    monkeypatch.setattr(malloc_limits, "_malloc_trim", trim)
    monkeypatch.setattr(malloc_limits, "_rest_ends", 0.0)
    deadline, asked = time.monotonic() + 30, 0
    while len(began) < 2:
        malloc_limits.trim()
        asked += 1
        time.sleep(0.001)
        assert time.monotonic() < deadline
    malloc_limits.trim()  # while the second one is at it, or rests
    while len(ended) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(began) == 3
    assert asked > 10
    for at in (0, 1):  # the clocks of this test and of what it tests differ by a little
        assert began[at + 1] - ended[at] >= 8.5 * (ended[at] - began[at])
