"""Test sizes: each test has one, and is run for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import durations, sizes

RECORD = {
    "tests/engine/test_a.py": 3.0,
    "tests/engine/test_a.py::test_campaign": 2.5,
    "tests/engine/test_a.py::test_scenario": 0.2,
    "tests/engine/test_b.py": 0.06,
    "tests/engine/test_b.py::test_scenario": 0.06,
    "tests/daemon/test_c.py": 1.0,
    "tests/daemon/test_c.py::test_life": 1.0,
    "tests/packaging/test_d.py": 0.1,
}


@pytest.mark.parametrize(
    ("test", "size"),
    [
        ("tests/engine/test_a.py::test_campaign", "large"),
        ("tests/engine/test_a.py::test_scenario", "medium"),
        ("tests/engine/test_a.py::test_quick", "small"),
        ("tests/engine/test_new.py::test_new", "small"),
        ("tests/daemon/test_c.py::test_life", "large"),
        ("tests/daemon/test_c.py::test_quick", "medium"),
        ("tests/packaging/test_d.py::test_quick", "large"),
        ("tests/security/hostile/test_e.py::test_new", "large"),
    ],
)
def test_a_test_has_the_size_of_its_time_and_folder(test: str, size: str) -> None:
    assert sizes.size_of(test, RECORD) == size


def test_only_files_without_tests_of_a_size_are_left_out() -> None:
    assert sizes.files_without({"large"}, RECORD) == {"tests/engine/test_b.py"}
    assert sizes.files_without({"small", "medium"}, RECORD) == set()
    assert sizes.folders_without({"large"}) == ()
    assert "tests/daemon/" in sizes.folders_without({"small"})
    assert "tests/daemon/" not in sizes.folders_without({"small", "medium"})


def test_a_size_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="takes small, medium, large, not huge"):
        sizes.parse("small,huge")


def test_a_report_becomes_a_record(tmp_path: Path) -> None:
    """Tests of a class that the file inherits are its own, and small ones are added up."""
    report, record = tmp_path / "tests.xml", tmp_path / "record.txt"
    report.write_text(
        "<testsuite>"
        '<testcase classname="" name="tests.skipped" time="0.0"/>'
        '<testcase classname="tests.test_sizes" name="test_slow[a]" time="1.25"/>'
        '<testcase classname="tests.test_sizes.TestKit" name="test_quick" time="0.04"/>'
        '<testcase classname="tests.test_sizes.TestKit" name="test_other" time="0.01"/>'
        "</testsuite>"
    )
    durations.write(report, record)
    assert durations.read(record) == {
        "tests/test_sizes.py": 1.3,
        "tests/test_sizes.py::test_slow[a]": 1.25,
    }


def test_the_record_names_files_that_exist() -> None:
    files = {test.partition("::")[0] for test in durations.read()}
    missing = [file for file in files if not (durations.ROOT / file).is_file()]
    assert not missing, "run `make durations`"
