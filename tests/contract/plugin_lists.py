"""Import-linter's lists of built-in plugins in ``pyproject.toml``, which has no name patterns.

Writes them again, by the folders of ``plugins``:

    python -m tests.contract.plugin_lists
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

PROJECT_FILE = Path(__file__).parents[2] / "pyproject.toml"
PLUGINS = sorted(
    folder.name
    for folder in (PROJECT_FILE.parent / "plugins").glob("gatewayd_*/")
    if folder.name != "gatewayd_hooks"
)
_SIBLINGS = ("gatewayd_engine", "gatewayd_lang", "gatewayd_migrations")
_REGION = re.compile(r"(  # built-ins, (names|layer): .*\n)(?:.*\n)*?(  # until here\n)")


def renewed(text: str, plugins: Sequence[str]) -> str:
    """The file with these plugins between its marks."""
    names = "\n".join(_wrapped(" ".join(f'"{name}",' for name in plugins)))
    layer = " \\\n".join(_wrapped(" | ".join([*_SIBLINGS, *plugins])))
    lists = {"names": names, "layer": f'  """\\\n{layer}""",'}
    return _REGION.sub(lambda found: f"{found[1]}{lists[found[2]]}\n{found[3]}", text)


def _wrapped(text: str) -> list[str]:
    return wrap(text, 98, initial_indent="  ", subsequent_indent="  ")


if __name__ == "__main__":
    PROJECT_FILE.write_text(renewed(PROJECT_FILE.read_text(), PLUGINS))
