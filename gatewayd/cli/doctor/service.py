"""Checks of the service's environment: unit, sandbox, disk and database."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path

from gatewayd.cli.doctor.finding import Finding
from gatewayd.config.strategies import NONE
from gatewayd.config.tables import Config
from gatewayd.engines.replicas.launch import model_folder
from gatewayd_hooks.helpers import children

MOST_EXPOSURE = 2.0
_UNIT = Path("/etc/systemd/system/gatewayd.service")
_GIB = 1 << 30
_LACKING = 2
"""Exit status of ``gatewayd_engine.process.sandbox`` if the system lacks a mechanism."""
_EXPOSURE = re.compile(r"exposure level for \S+: ([\d.]+)")


def disk(config: Config) -> Finding:
    """Check that the store's folder is writable and its disk has space."""
    from gatewayd.store.location import TEMPORARY, default_folder

    path = config.store.path
    folder = default_folder(os.environ) if path is None else Path(path).expanduser().absolute()
    if path == TEMPORARY or folder is None:
        folder = Path(tempfile.gettempdir())
    # The folder may not exist yet: its nearest existing parent is what the daemon will write to.
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        who = f"uid {os.geteuid()}"
        return Finding("disk", "failure", f"{there} cannot be written by {who}; see [store] path")
    free = shutil.disk_usage(there).free
    floor = int(config.store.free_bytes)
    text = f"{folder}: {free / _GIB:.1f} GiB free"
    if free < floor:
        text += f", less than [store] free_bytes = {floor / _GIB:.1f} GiB: writes are refused"
        return Finding("disk", "failure", text)
    if free < floor + int(config.store.bytes):
        text += f"; [store] bytes may take {int(config.store.bytes) / _GIB:.1f} GiB"
    return Finding("disk", "ok", text)


def sqlite(config: Config) -> Finding:
    """Check that Python's SQLite is recent enough and compiled with threads."""
    from gatewayd.store.wal import MENDED, has_bug

    version = sqlite3.sqlite_version
    if sqlite3.threadsafety == 0:
        return Finding(
            "sqlite", "failure", f"{version} is compiled without threads; install another"
        )
    if has_bug():
        text = (
            f"{version} may damage a database that two programs write to at once: let nothing but "
            f"gatewayd write to its store, or install {'.'.join(map(str, MENDED))} or later"
        )
        return Finding("sqlite", "warning", text)
    return Finding("sqlite", "ok", version)


def confinement(config: Config) -> Finding:
    """Check in a child process that pulls of models and grammar checkers can be sandboxed."""
    has_guide = config.guide.strategy != NONE
    which = "grammar checkers and pulls" if has_guide else "pulls"
    try:
        folder = str(model_folder(config)) if has_guide else children.FOLDER
        command = children.python("-m", "gatewayd_engine.process.sandbox", folder)
        done = children.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Finding("confinement", "failure", f"the sandbox cannot be tested: {error}")
    # The last line of a traceback is its error.
    why = "".join((done.stdout.strip() or done.stderr.strip()).splitlines()[-1:])
    if done.returncode == 0:
        return Finding("confinement", "ok", f"{which} are restricted to their own files")
    if done.returncode == _LACKING:
        text = f"{why}: {which} can access what the daemon can"
        return Finding("confinement", "warning", text)
    text = f"{why}: {'requests with grammars, and pulls,' if has_guide else which} are refused"
    return Finding("confinement", "failure", text)


def unit(config: Config) -> Finding:
    """Check systemd's exposure score of the service; lower is better."""
    from gatewayd.daemon.systemd.units import UnitsMissing, own_program, unit_files, why_unusable

    if shutil.which("systemd-analyze") is None:
        return Finding("unit", "ok", "systemd is not installed here")
    try:
        files = unit_files(own_program(), gpu=False)
    except UnitsMissing as error:
        return Finding("unit", "failure", str(error))
    # By its name, so that drop-ins are included.
    if _UNIT.exists():
        return _judge("gatewayd.service", f"{_UNIT}:")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, _UNIT.name)
        path.write_text(files[0].text, "utf-8")
        found = _judge(str(path), "not installed; what `gatewayd install` writes:")
    if why := why_unusable(own_program()):
        return Finding("unit", found.state, f"{found.text}; as a service: {why}")
    return found


def _judge(unit: str, whose: str) -> Finding:
    command = ["systemd-analyze", "security", "--no-pager", "--offline=true", unit]
    try:
        done = children.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("unit", "warning", f"systemd-analyze cannot be run: {error}")
    score = _EXPOSURE.search(done.stdout)
    if score is None:
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        return Finding("unit", "warning", f"{whose} no score: {''.join(reason)}")
    text = f"{whose} exposure {score[1]} of 10"
    if float(score[1]) > MOST_EXPOSURE:
        return Finding("unit", "warning", f"{text}, above {MOST_EXPOSURE}; check its drop-ins")
    return Finding("unit", "ok", text)
