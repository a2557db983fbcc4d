"""Nested pytest runs: options that skip plugins they do not need, to start faster."""

from __future__ import annotations

import os
from pathlib import Path

NEEDLESS = (
    "schemathesis",
    "xdist",
    "xdist.looponfail",
    "asyncio",
    "anyio",
    "rerunfailures",
    "syrupy",
)
QUICKLY = {"PYTEST_ADDOPTS": " ".join(f"-p no:{name}" for name in NEEDLESS)}
"""Environment of one whose projects use none of these plugins."""

_PATH = [str(Path(__file__).with_name("nested_pytest_plugins")), os.environ.get("PYTHONPATH", "")]
BRIEFLY = {
    "PYTEST_ADDOPTS": f"{QUICKLY['PYTEST_ADDOPTS']} -p few_examples",
    "PYTHONPATH": os.pathsep.join(_PATH).strip(os.pathsep),
}
"""The same, and ``nested_pytest_plugins/few_examples.py``."""


def with_examples(count: int, *sources: Path) -> dict[str, str]:
    """The same with so many cases of the kit, for projects whose sources are here."""
    path = [*map(str, sources), BRIEFLY["PYTHONPATH"]]
    return {**BRIEFLY, "PYTHONPATH": os.pathsep.join(path), "KIT_EXAMPLES": str(count)}
