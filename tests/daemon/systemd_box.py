"""Machine with systemd and gatewayd, for the length of a test.

The new root is an overlay of ours, so it has all that is installed here. gatewayd is put where a
sandboxed service sees it: the interpreter, its packages and the checkout are mounted below one
folder that is nobody's home.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = "/usr/local/lib/gatewayd"
_SCRIPT = Path(__file__).with_name("systemd_box.sh")
_TOOLS = ("unshare", "nsenter", "systemctl", "systemd-sysusers", "dbus-daemon")
_SOURCES = ("", "engine", "plugins", "migrations", "lang")
_PREPARE = """
H=$R{home}
mkdir -p $H/bin $H/python $H/site $H/source $H/lib/{version}/site-packages
mount --bind {base} $H/python
mount --bind {site} $H/site
mount --bind {root} $H/source
ln -s {home}/python/bin/{version} $H/bin/python
printf 'home = {home}/python/bin\\n' > $H/pyvenv.cfg
printf '{paths}' > $H/lib/{version}/site-packages/all.pth
cat > $H/bin/gatewayd <<'END'
#!/bin/sh
LD_LIBRARY_PATH={home}/python/lib exec {home}/bin/python -m gatewayd "$@"
END
chmod 755 $H/bin/gatewayd
rm -rf $R/etc/gatewayd $R/var/lib/gatewayd $R/var/cache/gatewayd
"""


def why_not() -> str:
    """Why there can be no box here; empty if there can."""
    if os.geteuid() != 0:
        return "needs root"
    if not Path("/lib/systemd/systemd").exists():
        return "needs systemd's program"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"needs {', '.join(missing)}"
    probe = [
        "unshare",
        "--fork",
        "--pid",
        "--mount",
        "--cgroup",
        "mount",
        "-t",
        "tmpfs",
        "x",
        "/mnt",
    ]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "may not make namespaces"
    return ""


class Box:
    """The machine; make it, use it, ``stop`` it."""

    def __init__(self, folder: Path) -> None:
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        paths = [f"{HOME}/source/{name}".rstrip("/") for name in _SOURCES] + [f"{HOME}/site"]
        prepare = folder / "prepare.sh"
        prepare.write_text(
            _PREPARE.format(
                home=HOME,
                version=version,
                base=sys.base_prefix,
                site=sysconfig.get_path("purelib"),
                root=ROOT,
                paths="\\n".join(paths) + "\\n",
            )
        )
        root = folder / "box"
        root.mkdir()
        self._log = (folder / "box.log").open("wb")
        self._unshare = subprocess.Popen(
            ["bash", str(_SCRIPT), str(root), str(prepare)], stdout=self._log, stderr=self._log
        )
        self._pid = self._find(Path(folder / "box.log"))
        self._wait_booted()

    def _find(self, log: Path) -> str:
        """The pid of the box's first process, once it is systemd."""
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._unshare.poll() is None:
            for pid in children.read_text().split():
                if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                    return pid
            time.sleep(0.05)
        raise AssertionError(log.read_text())

    def _wait_booted(self) -> None:
        deadline = time.monotonic() + 30
        while (state := self.run("systemctl", "is-system-running", check=False)) != "running":
            failed = self.run("systemctl", "--failed", "--no-pager", check=False)
            assert time.monotonic() < deadline, (state, failed)
            time.sleep(0.1)

    def run(self, *command: str, check: bool = True, seconds: float = 60, stdin: str = "") -> str:
        """Run a command in it; what it wrote."""
        enter = ["nsenter", "-t", self._pid, "-m", "-p", "-u", "-i", "-C", "-r", "-w"]
        done = subprocess.run(
            [*enter, "env", "-i", f"PATH={HOME}/bin:/usr/sbin:/usr/bin:/sbin:/bin", *command],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}\n{self._journal()}"
        return done.stdout.strip()

    def _journal(self) -> str:
        try:
            return self.run("journalctl", "-u", "gatewayd", "-n", "40", "--no-pager", check=False)
        except subprocess.TimeoutExpired:
            return "the journal does not answer"

    def write(self, path: str, text: str) -> None:
        """Write a file in it."""
        self.run("mkdir", "-p", os.path.dirname(path))
        self.run("tee", path, stdin=text)

    def show(self, name: str, unit: str = "gatewayd.service") -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit)

    def wait(self, name: str, *values: str, seconds: float = 30) -> str:
        """Wait until a property of the service has one of these values."""
        deadline = time.monotonic() + seconds
        while (now := self.show(name)) not in values:
            assert time.monotonic() < deadline, (name, now, self._journal())
            time.sleep(0.05)
        return now

    def stop(self) -> None:
        """End it, with all that is in it."""
        self._unshare.kill()  # --kill-child ends the box's first process, and that all others
        self._unshare.wait()
        self._log.close()
