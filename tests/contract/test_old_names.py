"""Moved modules: importable under their former names."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

import gatewayd_hooks

NAMES = gatewayd_hooks._NEW_NAMES


def run(code: str) -> str:
    """What a fresh process says that takes warnings for errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_there_are_modules_that_have_moved() -> None:
    assert len(NAMES) == 37
    assert NAMES["gatewayd_hooks.waiting"] == "gatewayd_hooks.helpers.waiting"
    assert NAMES["gatewayd_hooks.testing.states"] == "gatewayd_hooks.testing.samples.states"


@pytest.mark.parametrize(("old", "new"), NAMES.items())
def test_both_names_are_of_one_module(old: str, new: str) -> None:
    module = import_module(old)
    assert module is import_module(new)
    assert module is sys.modules[old] is sys.modules[new]
    assert module.__name__ == new
    assert module.__spec__ is not None
    assert (module.__spec__.name, module.__spec__.origin) == (new, module.__file__)


@pytest.mark.parametrize(
    "code",
    [
        "import gatewayd_hooks.waiting as old; from gatewayd_hooks.helpers import waiting as new",
        "from gatewayd_hooks.helpers import waiting as new; import gatewayd_hooks.waiting as old",
        "from gatewayd_hooks import waiting as old; import gatewayd_hooks.helpers.waiting as new",
        "import gatewayd_hooks.waiting, gatewayd_hooks; old = gatewayd_hooks.waiting;"
        "from gatewayd_hooks.helpers import waiting as new",
        "from gatewayd_hooks.testing import states as old;"
        "from gatewayd_hooks.testing.samples import states as new",
    ],
)
def test_it_does_not_matter_which_comes_first(code: str) -> None:
    assert run(f"{code}; print(old is new, new.__name__ == new.__spec__.name)") == "True True"


def test_no_module_is_loaded_before_somebody_asks() -> None:
    code = "import sys, gatewayd_hooks; print(*(n for n in sys.modules if 'gatewayd_hooks.' in n))"
    assert run(code) == ""


@pytest.mark.parametrize("name", ["gatewayd_hooks.nothing", "gatewayd_hooks.testing.waiting"])
def test_other_names_are_not_found(name: str) -> None:
    assert find_spec(name) is None
    with pytest.raises(ModuleNotFoundError, match=name):
        import_module(name)
