"""What large jobs freed is the system's again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import asyncio, random, sys
from gatewayd import memory
from gatewayd.text.tokenizer import Tokenizer

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

async def main(tokenizer, text):
    before = resident()
    await asyncio.gather(*(
        tokenizer.apart(len(text), lambda: len(tokenizer.encode(text))) for _ in range(6)
    ))
    return resident() - before

memory.settle()
text = " ".join(str(random.random()) for _ in range(30_000))
print(asyncio.run(main(Tokenizer(open(sys.argv[1]).read()), text)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, and glibc")
def test_long_texts_leave_no_memory_behind() -> None:
    """600 kB of digits: 120 MiB each while it is encoded, and 125 to 160 kept without a trim."""
    file = Path(__file__).parents[2] / "engine/gatewayd_engine/models/nano/tokenizer.json"
    grown = subprocess.check_output([sys.executable, "-c", JOB, str(file)])
    assert int(grown) < 64 << 20
