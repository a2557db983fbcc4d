"""Where programs of a GPU machine find the project and what the kit brings.

    eval "$(python3 -m tests.gpu.kit.environment)"        for a shell; setup.sh does it

Where the project is installed nothing of the kit is used.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

from tests.gpu import installed

ROOT = Path(__file__).parents[3]
ARCHIVE = ROOT / ".gpu" / "site.tar.xz"
PYTHON = (3, 12)
"""Of the packages in the kit."""
_DRIVER = "libcuda.so.1"
SOURCES = ("", "engine", "plugins", "tui", "migrations", "lang")


def environment(archive: Path = ARCHIVE) -> dict[str, str]:
    """Variables for programs; unpacks the kit when it is first asked.

    Raises:
        RuntimeError: the project is not installed, and the kit is missing or for another Python.
    """
    paths = [str(ROOT / one) for one in SOURCES]
    found = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    if not is_installed():
        if not archive.is_file():
            raise RuntimeError(
                f"{archive} is missing, and the project is not installed: run `make gpu-kit` where "
                "there is a network, and carry it here; or run `make install`"
            )
        if sys.version_info[:2] != PYTHON:
            raise RuntimeError(
                f"the kit is for Python {'.'.join(map(str, PYTHON))}, and this is {sys.version}"
            )
        folder = _unpacked(archive)
        installed.write(folder / "entry")
        _claim_tests(folder / "entry")
        paths += [str(folder / "entry"), str(folder / "site")]
        found |= {
            "FLASHINFER_WORKSPACE_BASE": str(folder),
            # Compiled modules are for this architecture: H100 and H200.
            "FLASHINFER_CUDA_ARCH_LIST": os.environ.get("FLASHINFER_CUDA_ARCH_LIST", "9.0a"),
            "FLASHINFER_NO_DOWNLOAD": "1",
            "TRITON_CACHE_DIR": str(folder / "triton"),
        }
        if _has_driver():
            # Modules compiled on a machine without a driver are not linked with its library.
            found["LD_PRELOAD"] = " ".join(filter(None, (os.environ.get("LD_PRELOAD"), _DRIVER)))
    if others := os.environ.get("PYTHONPATH"):
        paths += [one for one in others.split(os.pathsep) if one not in paths]
    # Before what is installed: a package of the kit is the newer one.
    return found | {"PYTHONPATH": os.pathsep.join(paths)}


def _has_driver() -> bool:
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def _claim_tests(folder: Path) -> None:
    """Make ``tests`` ours: it is no package here, so one of the image's would be imported."""
    package = folder / "tests"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text(f"__path__ = [{str(ROOT / 'tests')!r}]\n", "utf-8")


def is_installed() -> bool:
    """Whether the project and what it depends on are installed, rather than on the path."""
    # What ``installed.py`` writes has no record of files.
    return any(one.read_text("RECORD") for one in metadata.distributions(name="gatewayd"))


def _unpacked(archive: Path) -> Path:
    """The folder of this kit, which is unpacked once."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:12]
    base = Path(tempfile.gettempdir()) / f"gatewayd-gpu-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        raise RuntimeError(f"{base} is another user's")
    folder = base / digest
    if not (folder / "done").exists():
        with tarfile.open(archive) as packed:
            packed.extractall(folder / "site", filter="data")
        (folder / "done").touch()
    return folder


if __name__ == "__main__":
    try:
        for name, value in environment().items():
            print(f"export {name}={shlex.quote(value)}")
    except RuntimeError as error:
        print(f"echo {shlex.quote(str(error))} >&2; false")
