"""Unit files that come with gatewayd, and their installed paths.

They are read from the checkout, or from the installed wheel's data files.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_CHECKOUT = Path(__file__).parents[3] / "systemd"
_SHIPPED = "share/gatewayd/systemd/"
_PROGRAM = "/usr/bin/gatewayd"
"""Program path in the files; installed ones contain the path of the installing program."""

MARK = "# Written by `gatewayd install`; it replaces this file, so change it by drop-ins.\n"
_UNITS = "etc/systemd/system"
_GPU = "gatewayd.service.d/10-gpu.conf"
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""Folders that are hidden from the unit by ``ProtectHome=`` and ``PrivateTmp=``."""

UNITS = ("gatewayd.service", "gatewayd@.service", "gatewayd.socket")


class UnitsMissing(Exception):
    """The files that come with gatewayd are missing."""


@dataclass(frozen=True, slots=True)
class UnitFile:
    """A file to be installed.

    Attributes:
        path: path relative to the root of the machine.
        text: its content.
    """

    path: str
    text: str


def source() -> Path:
    """The folder of the unit files.

    Raises:
        UnitsMissing: it does not exist.
    """
    if (_CHECKOUT / UNITS[0]).is_file():
        return _CHECKOUT
    try:
        files = importlib.metadata.files("gatewayd") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if str(file).endswith(_SHIPPED + UNITS[0]):
            return Path(str(file.locate())).resolve().parent
    raise UnitsMissing(f"gatewayd was installed without {_SHIPPED}{UNITS[0]}")


def unit_files(program: str, *, gpu: bool) -> list[UnitFile]:
    """All files to be installed.

    Args:
        program: path of ``gatewayd``.
        gpu: whether engines use NVIDIA GPUs.

    Raises:
        UnitsMissing: see ``source``.
    """
    folder = source()
    places = {
        **{unit: f"{_UNITS}/{unit}" for unit in UNITS},
        "sysusers.d/gatewayd.conf": "etc/sysusers.d/gatewayd.conf",
        "tmpfiles.d/gatewayd.conf": "etc/tmpfiles.d/gatewayd.conf",
    }
    found = [UnitFile(place, _text(folder / name, program)) for name, place in places.items()]
    if gpu:
        text = _text(folder / _GPU, program)
        found.append(UnitFile(f"{_UNITS}/{_GPU}", text))
        found.append(UnitFile(f"{_UNITS}/gatewayd@.service.d/10-gpu.conf", _for_instances(text)))
    return found


def every_path() -> list[str]:
    """All paths that may have been installed, with any options."""
    return [file.path for file in unit_files(_PROGRAM, gpu=True)]


def own_program() -> str:
    """The path of the ``gatewayd`` that belongs to this interpreter."""
    return str(Path(sys.prefix, "bin", "gatewayd"))


def why_unusable(program: str) -> str:
    """Describe why the unit could not run a program; empty if it could.

    The interpreter matters, too: a virtual environment only links to it.
    """
    if not os.access(program, os.X_OK):
        return f"{program} is not an executable"
    for path in (program, os.path.realpath(program), os.path.realpath(sys.executable)):
        for hidden in _HIDDEN:
            if path.startswith(hidden + "/"):
                return (
                    f"{path} is below {hidden}, which is hidden from the unit; install gatewayd "
                    "with an interpreter of the system, such as in /usr/local/lib/gatewayd"
                )
    return ""


def _text(file: Path, program: str) -> str:
    # With the space, so that no longer path that begins alike is replaced.
    return MARK + file.read_text("utf-8").replace(_PROGRAM + " ", program + " ")


def _for_instances(text: str) -> str:
    return text.replace("%C/gatewayd", "%C/gatewayd-%i")
