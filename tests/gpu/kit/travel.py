"""Bytes that travel to the GPU machine: files that git does not ignore, and the kit."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

MIB = 1 << 20
MOST = 63 * MIB
ROOM = 64 * MIB
"""What may travel; a MiB of it is left for files added on the way."""


class Travel(NamedTuple):
    """Sizes in bytes."""

    kit: int
    tree: int

    @property
    def fits(self) -> bool:
        """Whether both may travel together."""
        return self.kit + self.tree <= MOST

    def __str__(self) -> str:
        together = (self.kit + self.tree) / MIB
        return (
            f"kit {self.kit / MIB:.1f} MiB, working tree {self.tree / MIB:.1f} MiB, "
            f"together {together:.1f} of {ROOM // MIB} MiB"
        )


def tree_bytes(root: Path) -> int:
    """Bytes of the files that git tracks or does not ignore; 0 where there is no git."""
    done = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        return 0
    files = {root / name.decode() for name in done.stdout.split(b"\0") if name}
    return sum(file.lstat().st_size for file in files if file.is_symlink() or file.is_file())


def travelling(root: Path, kit: Path) -> Travel:
    """What travels of a checkout with a kit."""
    return Travel(sum(f.stat().st_size for f in kit.rglob("*") if f.is_file()), tree_bytes(root))
