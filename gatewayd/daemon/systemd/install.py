"""Installation and removal of the unit files, with a report of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gatewayd.daemon.systemd.units import MARK, UnitFile
from gatewayd_hooks.helpers import children

_RUNNING = Path("/run/systemd/system")


class InstallError(Exception):
    """A step failed; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Installer:
    """Installs files below a root folder.

    Attributes:
        root: ``/``, or the folder of an image or a package.
        is_dry: whether to report the steps only.
        say: called with a description of each step.
    """

    root: Path
    is_dry: bool
    say: Callable[[str], None]

    @property
    def _is_live(self) -> bool:
        """Whether systemd runs on the target, which is this machine."""
        return self.root == Path("/") and _RUNNING.is_dir()

    def install(self, files: Sequence[UnitFile]) -> None:
        """Write the files; on a live system create the user and folders, too.

        Raises:
            InstallError: a file not written by gatewayd is in the way, in which case nothing is
                written; or a file cannot be written, or systemd refuses.
        """
        # All are checked before the first is written: an installation is whole, or nothing happens.
        if foreign := [str(p) for f in files if _is_foreign(p := self.root / f.path)]:
            raise InstallError(f"not written by gatewayd, so not replaced: {', '.join(foreign)}")
        for file in files:
            path = self.root / file.path
            if path.exists() and path.read_text("utf-8") == file.text:
                self.say(f"unchanged {path}")
                continue
            self.say(f"{'replace' if path.exists() else 'write'} {path}")
            if not self.is_dry:
                _write(path, file.text)
        paths = {Path(f.path).parent.name: str(self.root / f.path) for f in files}
        # In this order: the folders belong to the user, and the units name both.
        self._run("systemd-sysusers", paths["sysusers.d"])
        self._run("systemd-tmpfiles", "--create", paths["tmpfiles.d"])
        self._run("systemctl", "daemon-reload")

    def uninstall(self, paths: Sequence[str], units: Sequence[str]) -> None:
        """Stop the service, then delete the files that ``install`` has written.

        Other files stay, and so do configuration, credentials, state and user.

        Raises:
            InstallError: a file cannot be deleted, or systemd refuses.
        """
        there = [unit for unit in units if (self.root / "etc/systemd/system" / unit).exists()]
        # A template cannot be stopped; its instances are stopped by the operator, by their names.
        if plain := [unit for unit in there if "@" not in unit]:
            self._run("systemctl", "disable", "--now", *plain)
        for each in paths:
            path = self.root / each
            if not path.exists():
                continue
            if _is_foreign(path):
                self.say(f"keep {path}: not written by gatewayd")
                continue
            self.say(f"delete {path}")
            if not self.is_dry:
                _delete(path)
        self._run("systemctl", "daemon-reload")

    def _run(self, *command: str) -> None:
        if not self._is_live:
            return
        self.say("run " + " ".join(command))
        if self.is_dry:
            return
        try:
            done = children.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise InstallError(f"{command[0]} cannot be run: {error.strerror}") from error
        if done.returncode:
            raise InstallError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


def _is_foreign(path: Path) -> bool:
    try:
        return not path.read_text("utf-8").startswith(MARK)
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return True


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Replaced at once: systemd never reads half a unit.
        beside = path.with_name(path.name + ".new")
        beside.write_text(text, "utf-8")
        beside.chmod(0o644)
        beside.replace(path)
    except OSError as error:
        raise InstallError(f"cannot write {path}: {error.strerror}") from error


def _delete(path: Path) -> None:
    try:
        path.unlink()
        is_ours = path.parent.name.startswith("gatewayd")  # a folder of drop-ins
        if is_ours and not any(path.parent.iterdir()):
            path.parent.rmdir()
    except OSError as error:
        raise InstallError(f"cannot delete {path}: {error.strerror}") from error
