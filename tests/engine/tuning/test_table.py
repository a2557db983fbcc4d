"""Tuning table: chooses by measurement, and never measures twice."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gatewayd_engine.tuning import cache_files
from gatewayd_engine.tuning.table import TunedMachine, TuningTable, case, load

H200 = TunedMachine("NVIDIA H200", "9.0", {"torch": "2.11.0", "flashinfer": "0.7.2.post1"})
CASE = case("matmul", "bfloat16", m=8, n=6144, k=4096)


class Stopwatch:
    """Times that are known before; notes which were asked for."""

    def __init__(self, **times: float | Exception) -> None:
        self.times = times
        self.asked: list[str] = []

    def __call__(self, name: str) -> float:
        self.asked.append(name)
        time = self.times[name.replace(" ", "_")]
        if isinstance(time, Exception):
            raise time
        return time


def agrees(name: str) -> None:
    """The check of candidates that compute the same."""


def never(name: str) -> float:
    raise AssertionError(f"{name} is measured again")


def test_the_fastest_is_chosen_and_kept(tmp_path: Path) -> None:
    names = ["torch", "cublaslt 0", "tinygemm2"]
    measure = Stopwatch(torch=10.0, cublaslt_0=9.0, tinygemm2=8.0)
    table = TuningTable(H200, tmp_path)
    assert table.chosen(CASE, names, measure, agrees) == "tinygemm2"
    assert measure.asked == names
    assert table.measured == 1
    again = TuningTable(H200, tmp_path)
    assert again.chosen(CASE, names, never, agrees) == "tinygemm2"
    assert again.measured == 0
    assert again.path is not None
    contents = load(again.path)
    assert contents is not None
    (entry,) = contents.entries
    assert entry.microseconds == {"torch": 10.0, "cublaslt 0": 9.0, "tinygemm2": 8.0}
    assert entry.sizes == {"m": 8, "n": 6144, "k": 4096}


@pytest.mark.parametrize(
    ("time", "choice"), [(9.81, "torch"), (9.79, "other"), (float("nan"), "torch")]
)
def test_what_saves_two_percent_or_less_is_not_worth_it(time: float, choice: str) -> None:
    measure = Stopwatch(torch=10.0, other=time)
    assert TuningTable(H200).chosen(CASE, ["torch", "other"], measure, agrees) == choice


def test_a_candidate_that_fails_is_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["torch", "broken", "good"]
    measure = Stopwatch(torch=10.0, broken=RuntimeError("not supported\nat all"), good=9.0)
    with caplog.at_level(logging.INFO):
        assert TuningTable(H200, tmp_path).chosen(CASE, names, measure, agrees) == "good"
    (line,) = [record.message for record in caplog.records]
    assert "broken" in line
    assert "not supported" in line
    assert "\n" not in line
    # It stays out: what has failed is known as well.
    assert TuningTable(H200, tmp_path).chosen(CASE, names, never, agrees) == "good"


def test_without_the_defaults_time_nothing_else_is_taken() -> None:
    measure = Stopwatch(torch=RuntimeError("no memory"), other=1.0)
    assert TuningTable(H200).chosen(CASE, ["torch", "other"], measure, agrees) == "torch"


def test_other_candidates_or_another_case_are_measured(tmp_path: Path) -> None:
    TuningTable(H200, tmp_path).chosen(CASE, ["torch", "a"], Stopwatch(torch=2.0, a=1.0), agrees)
    table = TuningTable(H200, tmp_path)
    measure = Stopwatch(torch=2.0, a=1.0, b=0.5)
    assert table.chosen(CASE, ["torch", "a", "b"], measure, agrees) == "b"
    other = case("matmul", "bfloat16", m=16, n=6144, k=4096)
    assert table.chosen(other, ["torch", "a"], Stopwatch(torch=1.0, a=2.0), agrees) == "torch"
    assert [entry.sizes["m"] for entry in TuningTable(H200, tmp_path).entries] == [8, 16]


@pytest.mark.parametrize(
    "changed",
    [
        TunedMachine("NVIDIA H100", "9.0", H200.versions),
        TunedMachine("NVIDIA H200", "9.0", {**H200.versions, "torch": "2.12.0"}),
    ],
)
def test_another_machine_starts_anew(tmp_path: Path, changed: TunedMachine) -> None:
    TuningTable(H200, tmp_path).chosen(CASE, ["torch", "a"], Stopwatch(torch=2.0, a=1.0), agrees)
    assert TuningTable(changed, tmp_path).entries == []
    # Nor is its file believed under another name.
    old, new = TuningTable(H200, tmp_path).path, TuningTable(changed, tmp_path).path
    assert old is not None
    assert new is not None
    new.write_bytes(old.read_bytes())
    assert TuningTable(changed, tmp_path).entries == []


def no_json(text: str) -> str:
    return text[:-40]


def other_types(text: str) -> str:
    document = json.loads(text)
    document["entries"][0]["microseconds"] = ["torch"]
    return json.dumps(document)


def unknown_choice(text: str) -> str:
    document = json.loads(text)
    document["entries"][0]["choice"] = "rm -rf"
    return json.dumps(document)


@pytest.mark.parametrize("spoil", [no_json, other_types, unknown_choice, lambda text: ""])
def test_a_damaged_file_is_measured_again(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    table = TuningTable(H200, tmp_path)
    table.chosen(CASE, ["torch", "a"], Stopwatch(torch=2.0, a=1.0), agrees)
    assert table.path is not None
    table.path.write_text(spoil(table.path.read_text()))
    again = TuningTable(H200, tmp_path)
    measure = Stopwatch(torch=2.0, a=1.0)
    assert again.chosen(CASE, ["torch", "a"], measure, agrees) == "a"
    assert measure.asked == ["torch", "a"]
    assert TuningTable(H200, tmp_path).chosen(CASE, ["torch", "a"], never, agrees) == "a"


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    table = TuningTable(H200, tmp_path / "file" / "below")
    assert table.chosen(CASE, ["torch", "a"], Stopwatch(torch=2.0, a=1.0), agrees) == "a"
    assert "cannot be written" in caplog.text


def test_two_engines_of_a_machine_keep_what_both_have_measured(tmp_path: Path) -> None:
    first, second = TuningTable(H200, tmp_path), TuningTable(H200, tmp_path)
    other = case("matmul", "bfloat16", m=1, n=6144, k=4096)
    first.chosen(CASE, ["torch", "a"], Stopwatch(torch=2.0, a=1.0), agrees)
    second.chosen(other, ["torch", "a"], Stopwatch(torch=2.0, a=1.0), agrees)
    assert len(TuningTable(H200, tmp_path).entries) == 2
    del first, second
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".json"]


def test_what_another_process_is_trying_now_is_no_fault(tmp_path: Path) -> None:
    first = TuningTable(H200, tmp_path)
    others: list[str] = []

    def measure(name: str) -> float:
        if name == "a":
            other = TuningTable(H200, tmp_path)
            others.append(other.chosen(CASE, ["torch", "a"], Stopwatch(torch=2.0, a=1.0), agrees))
        return 1.0

    assert first.chosen(CASE, ["torch", "a"], measure, agrees) == "torch"
    assert others == ["a"]


def test_the_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_files.folder() == tmp_path / "gatewayd" / "tuning"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    assert cache_files.folder() == tmp_path / ".cache" / "gatewayd" / "tuning"
