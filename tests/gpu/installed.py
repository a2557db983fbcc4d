"""Makes the project's built-in plugins visible where it is on the path but not installed.

Machines with a GPU often have no network, and installing needs packages that build. What Python
looks for is a folder with the entry points of ``pyproject.toml``; this writes one.

    python tests/gpu/installed.py FOLDER        then FOLDER goes to PYTHONPATH
"""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def write(folder: Path) -> None:
    """Write the metadata of the project to a folder, unless it is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    if metadata.entry_points(group="gatewayd"):
        return
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {where}" for name, where in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
