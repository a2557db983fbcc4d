"""``gatewayd plugin test``: conforming plugins pass, others fail by the rule they break."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gatewayd.cli.authoring import scaffold
from gatewayd.cli.authoring.kit import conformance_of
from gatewayd.cli.authoring.testing import CannotTest, PluginTestResult, find, run
from gatewayd_hooks.strategy import Kind
from tests.nested_pytest import BRIEFLY

EVICTION = {
    name.removeprefix("test_").replace("_", " ") for name in conformance_of(Kind.EVICTION).tests
}


@pytest.fixture(autouse=True)
def _with_what_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in BRIEFLY.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A new eviction."""
    return scaffold.write(Kind.EVICTION, "x", tmp_path)


def change(project: Path, old: str, new: str, file: str = "src/*/strategy.py") -> None:
    (path,) = project.glob(file)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def names(result: PluginTestResult, group: str, outcome: str = "passed") -> set[str]:
    return {t.name for t in result.tests if t.group == group and t.outcome == outcome}


def test_a_project_is_tested_with_its_own_tests_and_its_offer(project: Path) -> None:
    (project / "tests" / "test_more.py").write_text("def test_that_two_is_two():\n    pass\n")
    result = run(find(str(project)), {})
    assert result.is_good
    assert result.plugins == ("eviction.x",)
    assert names(result, "EvictionConformance") == EVICTION
    assert names(result, "Own tests") == {"that two is two"}
    assert len(names(result, "Offer")) == 3
    assert not (project / ".pytest_cache").exists()


def test_the_kinds_tests_run_where_a_project_has_left_them_out(project: Path) -> None:
    (project / "tests" / "test_conformance.py").write_text("def test_nothing():\n    pass\n")
    result = run(find(str(project)), {})
    assert result.is_good
    assert names(result, "EvictionConformance") == EVICTION


def test_what_breaks_the_contract_fails_by_name(project: Path) -> None:
    change(project, "del self._pages[page]", "pass")
    result = run(find(str(project)), {})
    assert not result.is_good
    assert "with nothing to evict a lookup error is raised" in names(
        result, "EvictionConformance", "failed"
    )
    assert "DID NOT RAISE" in result.output


def test_a_kit_test_that_is_overridden_is_ones_own(project: Path) -> None:
    change(
        project,
        '    """Conformance tests of the kind."""\n',
        "    def test_closing_it_unopened_is_harmless(self):\n        pass\n",
        "tests/test_conformance.py",
    )
    result = run(find(str(project)), {})
    assert names(result, "Own tests") == {"closing it unopened is harmless"}


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("src/*/strategy.py", "import nowhere", "No module named 'nowhere'.*pip install nowhere"),
        ("src/*/strategy.py", "def (", r"SyntaxError: .*; correct .*/strategy\.py:1$"),
        ("src/*/__init__.py", "raise RuntimeError('no')", r"no; correct .*/__init__\.py:1$"),
        ("src/*/__init__.py", "import os; os._exit(3)", "with status 3; correct what runs"),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_sentence_at_once(
    project: Path, file: str, text: str, sentence: str
) -> None:
    (path,) = project.glob(file)
    path.write_text(f"{text}\n{path.read_text()}".replace("from __future__", "# from __future__"))
    with pytest.raises(CannotTest, match=f"^eviction.x .*{sentence}"):
        run(find(str(project)), {})


def test_an_entry_point_without_its_module_is_said(project: Path) -> None:
    change(project, "gatewayd_evict_x", "gatewayd_evict_y", "pyproject.toml")
    with pytest.raises(CannotTest, match=r"No module named 'gatewayd_evict_y'; correct \[project"):
        run(find(str(project)), {})


def test_a_file_of_tests_that_cannot_be_imported_is_a_failure(project: Path) -> None:
    (project / "tests" / "test_more.py").write_text("import nowhere\n")
    result = run(find(str(project)), {})
    assert not result.is_good
    assert "nowhere" in result.output
    assert "asyncio_default_fixture_loop_scope" not in result.output


def test_the_internals_of_gatewayd_are_out_of_bounds(project: Path) -> None:
    change(project, "from collections import", "import gatewayd.config\nfrom collections import")
    result = run(find(str(project)), {})
    (failed,) = [test for test in result.tests if test.outcome == "failed"]
    assert failed.name == "it imports the contract and nothing else of gatewayd"
    assert "strategy.py:5 imports gatewayd.config" in failed.text


def test_an_entry_point_that_promises_what_is_not_offered_fails(project: Path) -> None:
    change(project, "eviction.x", "eviction.y", "pyproject.toml")
    result = run(find(str(project)), {})
    assert "its entry point loads" in names(result, "Offer", "failed")
    assert any("offers x, not y" in test.text for test in result.tests)


def test_a_setting_without_a_default_is_asked_for_and_taken(project: Path) -> None:
    change(project, '"""No settings yet."""', "pages: int", "src/*/config.py")
    (project / "tests" / "test_conformance.py").unlink()
    target = find(str(project))
    without = run(target, {})
    assert any("pages is not set" in test.text for test in without.tests)
    assert run(target, {"eviction.x": {"pages": 3}}).is_good


def test_one_that_is_installed_is_tested_by_its_kind() -> None:
    result = run(find("eviction.lru"), {})
    assert result.is_good
    assert names(result, "EvictionConformance") == EVICTION
    assert names(result, "Own tests") == set()


def test_a_processor_is_asked_by_its_name_in_extra_args(tmp_path: Path) -> None:
    project = scaffold.write(Kind.LOGITS_PROCESSOR, "x", tmp_path)
    (project / "tests" / "test_conformance.py").unlink()
    result = run(find(str(project)), {})
    assert result.is_good
    assert "logits change for requests with the option" in names(
        result, "LogitsProcessorConformance"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("eviction.lrü", r"eviction.lrü is not installed; did you mean eviction.lru\?"),
        ("evicton.lru", r"neither a folder .* nor an installed plugin.*mean eviction.lru\?"),
        ("nonsense", "neither a folder with a pyproject.toml nor an installed plugin"),
    ],
)
def test_what_cannot_be_found_is_said(text: str, sentence: str) -> None:
    with pytest.raises(CannotTest, match=sentence):
        find(text)


@pytest.mark.parametrize(
    ("pyproject", "sentence"),
    [
        ("[project]\nname = 'x'", "has no .project.entry-points.gatewayd."),
        ("[", "cannot be read"),
        (
            "[project.entry-points.gatewayd]\n'evicton.x' = 'x'",
            r"is not <kind>.<name>; did you mean eviction.x\?",
        ),
    ],
)
def test_a_project_that_offers_nothing_is_refused(
    pyproject: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(pyproject)
    with pytest.raises(CannotTest, match=sentence):
        find(str(tmp_path))


def test_without_pytest_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CannotTest, match="needs pytest and hypothesis: pip install"):
        run(find("eviction.lru"), {})


def test_its_environment_reaches_the_tests_whole(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(project / "elsewhere"), prepend=os.pathsep)
    (project / "tests" / "test_more.py").write_text(
        "import sys\ndef test_path():\n    assert any(p.endswith('elsewhere') for p in sys.path)\n"
    )
    assert run(find(str(project)), {}).is_good
    assert os.environ["PYTHONPATH"].startswith(str(project / "elsewhere"))


@pytest.mark.parametrize("name", ["eagle", pytest.param("draft_model", marks=pytest.mark.slow)])
def test_an_installed_drafter_that_needs_a_model_is_skipped_with_a_reason(name: str) -> None:
    result = run(find(f"drafter.{name}"), {})
    assert result.is_good
    assert len(names(result, "Offer")) == 3
    skipped = [test for test in result.tests if test.outcome == "skipped"]
    assert len(skipped) == 3
    for test in skipped:
        assert test.text.startswith("it needs a model, which the plugin's own tests can provide: ")
