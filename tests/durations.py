"""Seconds that test files took when last recorded: they order a run and choose ``make quick``.

``make durations`` runs all tests and writes the record, ``tests/durations.txt``, from pytest's
report: a line for each file, and one for each test that is too slow for the inner loop.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

RECORD = Path(__file__).with_suffix(".txt")
SLOW_SECONDS = 0.1
"""What a test of ``make quick`` may take on two cores that run nothing else."""


def read(record: Path = RECORD) -> dict[str, float]:
    """Seconds by file and by slow test, as pytest names them from the root of the project."""
    lines = record.read_text("utf-8").splitlines()
    return {name: float(seconds) for seconds, name in (line.split(" ", 1) for line in lines)}


def write(report: Path, record: Path = RECORD) -> None:
    """Turn a report of ``--junitxml`` (family xunit1) into the record."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        file, took = case.attrib["file"], float(case.attrib["time"])
        seconds[file] += took
        if took >= SLOW_SECONDS:
            seconds[f"{file}::{case.attrib['name']}"] += took
    lines = (f"{took:.1f} {name}\n" for name, took in sorted(seconds.items()) if took >= 0.05)
    record.write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
