"""Files of a distribution that run code in every Python of the machine, asked for or not.

A line of a ``.pth`` file that begins with ``import`` is run whenever Python starts there, the
daemon's and anybody else's: what is installed and not enabled is not inert then, and what is
enabled is more than it says. That it has been run cannot be undone here; that it is there can be
said.
"""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError, distribution

_RUN = ("import ", "import\t")


def startup_file(name: str) -> str | None:
    """The first file of a distribution that runs code at every start of Python; None of none.

    Installed as editable it may: its author works on it, and such installs are made that way.

    Args:
        name: of the distribution.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    if _is_editable(found):
        return None
    for file in found.files or ():
        # Below the folder of packages nobody looks for them.
        if file.suffix == ".pth" and len(file.parts) == 1 and _runs(file.read_binary()):
            return file.name
    return None


def _runs(content: bytes) -> bool:
    return any(line.startswith(_RUN) for line in content.decode("utf-8", "replace").splitlines())


def _is_editable(found: Distribution) -> bool:
    try:
        told = json.loads(found.read_text("direct_url.json") or "{}")
        return told["dir_info"]["editable"] is True
    except (ValueError, KeyError, TypeError):
        return False
