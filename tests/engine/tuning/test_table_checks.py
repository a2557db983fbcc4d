"""Tuning table checks: verified at each start before use."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.tuning.table import DeviceLost, NoMemory, TuningTable
from tests.engine.tuning.test_table import CASE, H200, Stopwatch, agrees, never

NAMES = ["torch", "a 1", "b 1", "b 2"]


class Checks:
    """Notes what is checked; candidates that it is given fail.

    Attributes:
        asked: names, in their order.
    """

    def __init__(self, *wrong: str, error: Exception | None = None) -> None:
        self.wrong = wrong
        self.error = ValueError("other\nnumbers") if error is None else error
        self.asked: list[str] = []

    def __call__(self, name: str) -> None:
        self.asked.append(name)
        if name in self.wrong:
            raise self.error


def measured(folder: Path) -> None:
    """A table in which ``b 1`` is the fastest, before ``a 1`` and ``b 2``."""
    measure = Stopwatch(torch=10.0, a_1=8.0, b_1=7.0, b_2=9.0)
    assert TuningTable(H200, folder).chosen(CASE, NAMES, measure, agrees) == "b 1"


def test_what_fails_its_check_is_not_measured() -> None:
    measure, check = Stopwatch(torch=10.0, b_1=7.0, b_2=9.0), Checks("a 1")
    assert TuningTable(H200).chosen(CASE, NAMES, measure, check) == "b 1"
    assert measure.asked == ["torch", "b 1", "b 2"]
    assert check.asked == ["a 1", "b 1", "b 2"]


def test_each_start_checks_the_known_choice_and_nothing_else(tmp_path: Path) -> None:
    measured(tmp_path)
    for _ in range(2):
        check = Checks("a 1")
        assert TuningTable(H200, tmp_path).chosen(CASE, NAMES, never, check) == "b 1"
        assert check.asked == ["b 1"]


def test_the_default_needs_no_check(tmp_path: Path) -> None:
    measure = Stopwatch(torch=1.0, other=2.0)
    names = ["torch", "other"]
    assert TuningTable(H200, tmp_path).chosen(CASE, names, measure, agrees) == "torch"
    check = Checks("torch")
    assert TuningTable(H200, tmp_path).chosen(CASE, names, never, check) == "torch"
    assert check.asked == []


@pytest.mark.parametrize(
    ("wrong", "asked", "choice"),
    [
        (["b 1"], ["b 1", "a 1"], "a 1"),
        (["b 1", "a 1"], ["b 1", "a 1", "b 2"], "b 2"),
        (["b 1", "a 1", "b 2"], ["b 1", "a 1", "b 2"], "torch"),
    ],
)
def test_a_known_choice_that_disagrees_is_left_alone_from_then_on(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    wrong: list[str],
    asked: list[str],
    choice: str,
) -> None:
    measured(tmp_path)
    check, table = Checks(*wrong), TuningTable(H200, tmp_path)
    assert table.chosen(CASE, NAMES, never, check) == choice
    assert check.asked == asked
    assert table.measured == 0
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == len(wrong)
    assert f"b 1 was chosen for {CASE} but fails its check" in warnings[0]
    assert str(table.path) in warnings[0]
    assert warnings[0].endswith("ValueError: other")
    # Neither the next start nor any later one tries it again.
    check = Checks(*wrong)
    assert TuningTable(H200, tmp_path).chosen(CASE, NAMES, never, check) == choice
    assert check.asked == ([] if choice == "torch" else [choice])


def test_an_edited_file_names_no_other_default(tmp_path: Path) -> None:
    measured(tmp_path)
    path = TuningTable(H200, tmp_path).path
    assert path is not None
    document = json.loads(path.read_text())
    document["entries"][0]["default"] = "b 1"
    path.write_text(json.dumps(document))
    measure, check = Stopwatch(torch=10.0, a_1=8.0, b_1=9.0, b_2=9.0), Checks("b 1")
    assert TuningTable(H200, tmp_path).chosen(CASE, NAMES, measure, check) == "a 1"


def test_a_device_that_is_lost_to_a_check_ends_the_start_and_excludes_the_family(
    tmp_path: Path,
) -> None:
    measured(tmp_path)
    with pytest.raises(DeviceLost):
        TuningTable(H200, tmp_path).chosen(
            CASE, NAMES, never, Checks("b 1", error=DeviceLost("gone"))
        )
    measure, check = Stopwatch(torch=10.0, a_1=8.0), Checks("b 1", "b 2")
    assert TuningTable(H200, tmp_path).chosen(CASE, NAMES, measure, check) == "a 1"
    assert check.asked == ["a 1"]


def test_a_check_that_passes_leaves_no_word_of_it(tmp_path: Path) -> None:
    measured(tmp_path)
    noted: list[str] = []

    def check(name: str) -> None:
        (file,) = tmp_path.glob("*.trying")
        noted.append(file.read_text().strip())

    table = TuningTable(H200, tmp_path)
    for _ in range(2):
        table.chosen(CASE, NAMES, never, check)
    assert noted == [f"matmul b\nb 1, {CASE}"] * 2
    # One file serves all attempts of a process.
    (file,) = [path for path in tmp_path.iterdir() if path != table.path]
    assert file.read_text().strip() == ""
    path = table.path
    del table
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("fails_at", ["check", "measure"])
def test_a_moment_without_memory_says_nothing_about_a_candidate(
    tmp_path: Path, is_known: bool, fails_at: str
) -> None:
    if is_known:
        measured(tmp_path)
    no_memory = NoMemory("too little memory for b 1")
    measure = Stopwatch(torch=10.0, a_1=8.0, b_1=7.0, b_2=9.0)
    check = Checks()
    if fails_at == "check" or is_known:
        check = Checks("b 1", error=no_memory)
    else:
        measure = Stopwatch(torch=10.0, a_1=8.0, b_1=no_memory)
    before = TuningTable(H200, tmp_path).entries
    with pytest.raises(NoMemory):
        TuningTable(H200, tmp_path).chosen(CASE, NAMES, measure, check)
    assert TuningTable(H200, tmp_path).entries == before
    measure = Stopwatch(torch=10.0, a_1=8.0, b_1=7.0, b_2=9.0)
    assert TuningTable(H200, tmp_path).chosen(CASE, NAMES, measure, agrees) == "b 1"


def at_sizes(*wrong: int, error: Exception | None = None) -> tuple[list[int], Any]:
    """Sizes that are checked, and a check that some of them fail."""
    asked: list[int] = []

    def check(size: int) -> None:
        asked.append(size)
        if size in wrong:
            raise error or ValueError("other numbers")

    return asked, check


def test_a_size_at_which_the_choice_fails_is_kept_and_warned_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measured(tmp_path)
    for tried in ([5, 6, 7], [6]):
        table = TuningTable(H200, tmp_path)
        assert table.chosen(CASE, NAMES, never, agrees) == "b 1"
        asked, check = at_sizes(5, 7)
        assert table.passing(CASE, [5, 6, 7], check) == [6]
        assert asked == tried
    (warning,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert f"b 1 was chosen for {CASE} but fails its check at 5, 7 rows; torch is" in warning
    (entry,) = TuningTable(H200, tmp_path).entries
    assert (entry.choice, entry.failing) == ("b 1", [5, 7])
    # What is captured next time may lie elsewhere.
    asked, check = at_sizes(4)
    assert TuningTable(H200, tmp_path).passing(CASE, [4, 6, 7], check) == [6]
    assert asked == [4, 6]
    # Another choice starts anew.
    assert TuningTable(H200, tmp_path).chosen(CASE, NAMES, never, Checks("b 1")) == "a 1"
    (entry,) = TuningTable(H200, tmp_path).entries
    assert entry.failing == []


def test_a_size_without_memory_is_not_kept(tmp_path: Path) -> None:
    measured(tmp_path)
    _, check = at_sizes(6, error=NoMemory("none"))
    with pytest.raises(NoMemory):
        TuningTable(H200, tmp_path).passing(CASE, [5, 6], check)
    asked, check = at_sizes()
    assert TuningTable(H200, tmp_path).passing(CASE, [5, 6], check) == [5, 6]
    assert asked == [5, 6]
