"""``gatewayd plugin doctor``: each kind of defect is told apart, with its remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gatewayd.cli.authoring import health
from gatewayd.cli.authoring.health import PluginHealth, check
from gatewayd.plugins import probe_process
from gatewayd.plugins.probe_process import Problem
from gatewayd_hooks.host.catalog import Catalog, Entry

SOUND = """
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyConfig, StrategyInfo, setting

class Settings(StrategyConfig):
    size: int = setting(3, reload="restart", ge=1, doc="Any.")

class Order:
    def open(self, resources): ...
    def close(self): ...
    def release(self, page): ...
    def reuse(self, page): ...
    def victim(self): ...
    def __len__(self): return 0

@hookimpl
def gatewayd_evictions():
    return [StrategyInfo("NAME", Settings, lambda config: Order(), "Any.")]
"""
OBSERVER = """
from gatewayd_hooks.markers import hookimpl

@hookimpl
def gatewayd_stopping(reason): ...
"""
MODULES = {
    "sound": SOUND,
    "chatty": "print('{}')\n" + SOUND,
    "gone": "",
    "lonely": "import nowhere.at_all\n",
    "raises": "raise RuntimeError('the moon is full')\n",
    "exits": "import sys; sys.exit('no')\n",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n",
    "silent": "",
    "other": SOUND.replace("NAME", "another"),
    "future": SOUND.replace("'Any.')]", "").replace('"Any.")]', '"Any.", ">=9")]'),
    "poor": SOUND.replace("    def victim(self): ...\n", ""),
    "asks": SOUND.replace("setting(3", "setting(..."),
    "misset": SOUND,
    "nosy": SOUND
    + "\n\ndef build():\n    from gatewayd_engine.core.engine_core import EngineCore\n",
    "heavy": "import torch\n" + SOUND,
    "slow": f"import time; time.sleep({health.SLOW_IMPORT_MS / 1000})\n" + SOUND,
    "torch": "",
}
ENABLED = {"eviction.sound", "eviction.misset", "eviction.lry", "observer.absent"}


def entry(name: str, kind: str = "eviction", distribution: str = "") -> Entry:
    return Entry(kind, name, distribution or f"dist-{name}", "1.0", f"module_{name}")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PluginHealth]:
    """Everything examined at once."""
    folder = tmp_path_factory.mktemp("modules")
    for name, source in MODULES.items():
        file = "torch.py" if name == "torch" else f"module_{name}.py"
        if name != "gone":
            (folder / file).write_text(source.replace("NAME", name))
    (folder / "module_watches.py").write_text(OBSERVER)
    (folder / "module_blind.py").write_text(OBSERVER.replace("stopping", "stoping"))
    entries = [entry(name) for name in MODULES if name != "torch"]
    entries += [entry("watches", "observer"), entry("blind", "observer"), entry("x", "evicton")]
    entries += [Entry("eviction", "twice", d, "1.0", "module_sound") for d in ("one", "two")]
    entries += [Entry("eviction", "lru", "gatewayd", "0.1.0", "gatewayd_evict_lru")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        checkups = check(Catalog(entries), ENABLED, {"eviction.misset": {"size": 0}})
    return {f"{each.plugin} {each.distribution}".strip(): each for each in checkups}


def of(found: dict[str, PluginHealth], name: str) -> PluginHealth:
    (checkup,) = [each for each in found.values() if each.plugin.endswith(f".{name}")]
    return checkup


def only(checkup: PluginHealth) -> Problem:
    (problem,) = checkup.problems
    return problem


@pytest.mark.parametrize("name", ["sound", "chatty", "watches", "lru"])
def test_what_works_is_well(found: dict[str, PluginHealth], name: str) -> None:
    checkup = of(found, name)
    assert (checkup.state, checkup.problems) == ("ok", ())
    assert checkup.import_ms is not None
    assert 0 < checkup.import_ms < health.SLOW_IMPORT_MS
    assert checkup.requires_spec == ("" if name == "watches" else ">=1.0,<2")


def test_what_the_configuration_chooses_is_marked(found: dict[str, PluginHealth]) -> None:
    enabled = {each.plugin for each in found.values() if each.is_enabled}
    assert enabled == ENABLED


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("lonely", "ModuleNotFoundError: No module named 'nowhere'", "pip install nowhere"),
        ("gone", "No module named 'module_gone'", "dist-gone is installed without the module"),
        ("raises", "RuntimeError: the moon is full", "pip uninstall dist-raises until then"),
        ("exits", "raised SystemExit: no", "report it to its author"),
        ("dies", "ends the process that loads it, with SIGKILL", "report it to its author"),
        (
            "silent",
            "module_silent does not implement gatewayd_evictions",
            "report it to its author",
        ),
        ("other", "module_other offers another, not other", "report it to its author"),
        ("future", "needs plugin contract >=9", "pip install --upgrade dist-future"),
        ("poor", "the strategy that it builds has no victim", "gatewayd plugin test eviction.poor"),
        ("misset", "size is 0: it should be greater than", "correct [eviction.misset]"),
        ("blind", "there is no hook gatewayd_stoping; did you mean", "report it to its author"),
        ("lry", "the configuration names it, but it is not installed", "write lru in [eviction]"),
        ("absent", "not installed", " in [plugins] observers"),
    ],
)
def test_what_is_broken_is_told_with_what_to_do(
    found: dict[str, PluginHealth], name: str, text: str, advice: str
) -> None:
    checkup = of(found, name)
    problem = only(checkup)
    assert checkup.state == "failure"
    assert text in problem.text
    assert advice in problem.advice


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("asks", "size is not set", "set [eviction.asks] before you choose it"),
        (
            "nosy",
            "module_nosy.py:22 imports gatewayd_engine.core.engine_core",
            "import only gatewayd_hooks",
        ),
        ("heavy", "ms with torch", "when the strategy is built"),
        ("slow", "its import takes", "when the strategy is built"),
        (
            "x",
            "this gatewayd has no plugin kind evicton",
            "its author may have meant the kind eviction",
        ),
    ],
)
def test_what_should_not_be_so_is_a_warning(
    found: dict[str, PluginHealth], name: str, text: str, advice: str
) -> None:
    checkup = of(found, name)
    problem = only(checkup)
    assert checkup.state == "warning"
    assert text in problem.text
    assert advice in problem.advice


def test_two_that_offer_one_name_are_both_named(found: dict[str, PluginHealth]) -> None:
    for own, other in (("one", "two"), ("two", "one")):
        conflict, *_ = found[f"eviction.twice {own}"].problems
        assert conflict.text == f"also offered by {other} 1.0, so neither can be used"
        assert f"pip uninstall {own}" in conflict.advice


def test_one_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_hangs.py").write_text("import time; time.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(probe_process, "_PROBE_SECONDS", 1)
    (checkup,) = check(Catalog([entry("hangs")]), (), {})
    assert only(checkup).text == "does not load within 1 s"


def test_a_secret_is_not_in_the_arguments_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_sound.py").write_text(
        f"import pathlib; print(pathlib.Path('/proc/self/cmdline').read_text())\n{SOUND}"
        f"\npathlib.Path({str(tmp_path / 'seen')!r}).write_text(str(pathlib.Path("
        "'/proc/self/cmdline').read_bytes() + pathlib.Path('/proc/self/environ').read_bytes()))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check(Catalog([entry("sound")]), (), {"eviction.sound": {"size": 424242}})
    assert "424242" not in (tmp_path / "seen").read_text()
    assert os.environ["PYTHONPATH"] in (tmp_path / "seen").read_text()
