"""Seconds that test files took when last recorded: they order a run and tell sizes apart.

``make durations`` runs all tests and writes the record, ``tests/durations.txt``, from pytest's
report: a line for each file, and one for each test that is not small (``sizes.py``).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

from tests.sizes import SMALL_SECONDS

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_suffix(".txt")


def read(record: Path = RECORD) -> dict[str, float]:
    """Seconds by file and by test that is not small, as pytest names them from the root."""
    lines = record.read_text("utf-8").splitlines()
    return {name: float(seconds) for seconds, name in (line.split(" ", 1) for line in lines)}


def write(report: Path, record: Path = RECORD) -> None:
    """Turn a report of ``--junitxml`` into the record."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        if not case.attrib["classname"]:
            continue  # a file that was skipped as a whole
        file, took = _file_of(case.attrib["classname"]), float(case.attrib["time"])
        seconds[file] += took
        if took > SMALL_SECONDS:
            seconds[f"{file}::{case.attrib['name']}"] += took
    found = ((name, took) for name, took in sorted(seconds.items()) if took > SMALL_SECONDS)
    record.write_text("".join(f"{took:.2f} {name}\n" for name, took in found), "utf-8")


def _file_of(name: str) -> str:
    """Return the file that ran a test, from its dotted name, which may end with a class.

    Tests of the conformance kit are defined in one file and run by many.
    """
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        file = "/".join(parts[:end]) + ".py"
        if (ROOT / file).is_file():
            return file
    raise ValueError(f"no file has the tests of {name}")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
