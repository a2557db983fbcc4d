"""Wheels for the GPU machine: fetched by their hashes, and unpacked as they would be installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.gpu.kit.lock import Pinned

PYTHON = "3.12"
"""Of the GPU machine, which is x86-64 with glibc 2.28 or newer."""
_GLIBC = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_27", "2_24", "2_17")
_FOREIGN = ("sqlalchemy/testing", "alembic/testing")
_FOREIGN_GLOBS = (
    "sqlalchemy/*/*_cy.*.so",  # twins of modules in Python
    "tvm_ffi/3rdparty/*/tests",
    "tvm_ffi/3rdparty/*/docs",
    "*/licenses",
    "**/*.pyx",
    "**/*.pyi",
    "**/*.md",
)
"""Nothing imports them there."""


class KitError(Exception):
    """The kit cannot be packed; the message says what is missing."""


def fetch(wanted: Iterable[Pinned], folder: Path, have: Sequence[Path] = ()) -> None:
    """Download wheels for the GPU machine.

    Args:
        wanted: packages with versions and hashes.
        folder: where they go.
        have: folders in which pip looks first.

    Raises:
        KitError: pip did not find one, or its hash is another.
    """
    file = folder / "requirements.txt"
    file.write_text("".join(one.requirement for one in wanted), "utf-8")
    platforms = [f"manylinux_{one}_x86_64" for one in _GLIBC]
    platforms += ["manylinux2014_x86_64", "manylinux1_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--python-version", PYTHON, "--implementation", "cp"]
    command += [word for one in platforms for word in ("--platform", one)]
    command += [word for one in have for word in ("--find-links", str(one))]
    done = subprocess.run(
        [*command, "--dest", str(folder), "--requirement", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    file.unlink()
    if done.returncode:
        raise KitError(f"pip cannot fetch what etc/lock names:\n{done.stderr.strip()}")


def wheel_of(name: str, folder: Path) -> Path:
    """The wheel of a package.

    Raises:
        KitError: there is none.
    """
    begin = name.replace("-", "_")
    for wheel in sorted(folder.glob("*.whl")):
        if wheel.name.lower().replace("-", "_").startswith(f"{begin}_"):
            return wheel
    raise KitError(f"{folder} has no wheel of {name}")


def unpack(wheel: Path, site: Path) -> None:
    """Put a wheel's files where an import finds them."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for data in site.glob("*.data"):
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, site, dirs_exist_ok=True)
        shutil.rmtree(data)


def trim(site: Path) -> None:
    """Remove what nothing imports, and symbols where there is a ``strip``."""
    found = [site / name for name in _FOREIGN]
    found += [path for pattern in _FOREIGN_GLOBS for path in site.glob(pattern)]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if strip := shutil.which("strip"):
        for library in site.rglob("*.so"):
            subprocess.run([strip, "-S", library], stderr=subprocess.DEVNULL, check=False)
