"""Fixtures: wheels built from this tree, and environments with nothing else of it.

No network, no second torch: an environment borrows every other package from the one that runs the
tests, through a path file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECTS = sorted((ROOT / "tests" / "third_party").glob("gatewayd-*/"))


def build(project: Path, out: Path, kind: str = "wheel") -> Path:
    """Build a project with its backend: ``wheel`` or ``editable``."""
    out.mkdir(parents=True, exist_ok=True)
    script = f"from hatchling.build import build_{kind}; print(build_{kind}({str(out)!r}))"
    return out / run([sys.executable, "-c", script], cwd=project).splitlines()[-1]


def run(argv: Sequence[str | Path], env: Mapping[str, str] = os.environ, **options: Any) -> str:
    """Run a command that must succeed; its standard output."""
    # The path of this process must not lend the child a package, nor the child leave files here.
    env = {key: value for key, value in env.items() if key != "PYTHONPATH"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        [str(part) for part in argv],
        env=env,
        text=True,
        capture_output=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@dataclass(frozen=True)
class Place:
    """An environment.

    Attributes:
        folder: its root.
        projects: a folder with copies of the third-party projects that are installed in it.
        is_editable: whether gatewayd is.
    """

    folder: Path
    projects: Path
    is_editable: bool

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        """Where its own packages are."""
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.folder)}))

    def ask(self, script: str) -> Any:
        """Run a script in it, elsewhere than here; decode the JSON it prints."""
        return json.loads(self.run("-c", script))

    def run(self, *argv: str | Path, **options: Any) -> str:
        """Run its interpreter, in its folder; the standard output."""
        return run([self.python, *argv], **{"cwd": self.folder, **options})


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of gatewayd."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """Copies of the third-party projects, and their wheels."""
    folder = tmp_path_factory.mktemp("strangers")
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    copies = [shutil.copytree(each, folder / each.name, ignore=ignored) for each in PROJECTS]
    return folder, [build(copy, folder / "dist") for copy in copies]


@pytest.fixture(scope="session", params=["wheel", "editable"])
def place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    strangers: tuple[Path, list[Path]],
) -> Place:
    """An environment with gatewayd, as a wheel or editable, and the third-party projects."""
    folder = tmp_path_factory.mktemp(request.param)
    projects, wheels = strangers
    if request.param == "wheel":
        host: Path = request.getfixturevalue("wheel")
    else:
        host = build(ROOT, folder / "dist", "editable")
    created = Place(folder / "venv", projects, request.param == "editable")
    venv.create(created.folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(created.python), "install", "--quiet"]
    offline = ["--disable-pip-version-check", "--no-index", "--no-deps"]
    run([*pip, *offline, host, *wheels], cwd=folder)
    # Only now, for pip must not find a gatewayd there. A path file found by way of another is
    # not obeyed, so an editable gatewayd of the borrowed environment stays out of sight.
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (created.site / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    return created
