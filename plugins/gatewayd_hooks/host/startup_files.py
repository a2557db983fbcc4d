"""Detects files of a distribution that run code at every start of Python on the machine.

A line of a ``.pth`` file that begins with ``import`` runs whenever Python starts there, in the
daemon and in any other program: such a plugin is not inert when installed and not enabled, and does
more than it declares when enabled. That it ran cannot be undone here; that it exists can be
reported.
"""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError, distribution

_RUN = ("import ", "import\t")


def startup_file(name: str) -> str | None:
    """Return the first file of a distribution that runs code at every start of Python, or None.

    Editable installs are exempt: they are implemented this way, and their author works on them.

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
        # Python reads them only directly in site-packages.
        if file.suffix == ".pth" and len(file.parts) == 1 and _runs(file.read_binary()):
            return file.name
    return None


def _runs(content: bytes) -> bool:
    return any(line.startswith(_RUN) for line in content.decode("utf-8", "replace").splitlines())


def _is_editable(found: Distribution) -> bool:
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        return origin["dir_info"]["editable"] is True
    except (ValueError, KeyError, TypeError):
        return False
