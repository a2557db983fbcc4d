"""Small disk that a test may fill: a tmpfs of a few MiB in its own mount namespace.

Daemons are started in that namespace; the test reaches the same files by the way of /proc.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.daemon.conftest import Running

_USER = [] if os.geteuid() == 0 else ["-U", "-r"]
_ENTER = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]


def why_not() -> str:
    """Why there can be no such disk here; empty if there can."""
    if missing := [tool for tool in ("unshare", "nsenter") if shutil.which(tool) is None]:
        return f"needs {', '.join(missing)}"
    probe = ["unshare", *_USER, "-m", "mount", "-t", "tmpfs", "x", "/mnt"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"needs mount namespaces: {done.stderr.strip()}"


class SmallDisk:
    """The disk.

    Attributes:
        inside: its folder, as daemons see it.
        outside: the same folder, as the test does.
    """

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid = pid
        self.inside = folder
        self.outside = Path(f"/proc/{pid}/root{folder}")

    def fill(self) -> None:
        """Leave no byte."""
        with (self.outside / "filling").open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        """Have room again."""
        (self.outside / "filling").unlink()

    def remount(self, how: str) -> None:
        """Make it ``ro`` or ``rw``."""
        subprocess.run([*self._command(), "mount", "-o", f"remount,{how}", self.inside], check=True)

    def start(self, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> Running:
        """A Python in the namespace."""
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [*self._command(), sys.executable, *arguments],
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=Path(__file__).parents[2],
            )
        return Running(process, log)

    def _command(self) -> list[str | Path]:
        return ["nsenter", "-t", str(self._pid), *_ENTER, "-m", f"--wd={Path.cwd()}"]


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    """A disk at a folder, as long as this lasts."""
    folder.mkdir()
    script = f"mount -t tmpfs -o size={size},mode=700 small '{folder}' && echo there && exec cat"
    holder = subprocess.Popen(
        ["unshare", *_USER, "-m", "--propagation", "private", "sh", "-ec", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"there\n"
        yield SmallDisk(holder.pid, folder)
    finally:
        holder.kill()
        holder.wait()
        for stream in (holder.stdin, holder.stdout):
            if stream is not None:
                stream.close()
