"""Daemons forked from a process with preloaded imports: saves a CPU second per start.

``python -m tests.daemon.forked_daemons FD ADDRESS`` is that process, one per test process. From
the socket ``FD`` it reads lines of JSON: ``argv`` as a Python is given it, ``env``, ``cwd`` and
``log``, the file for what is written to standard error. For each it forks a daemon, whose life is
its own from there on, and answers with ``pid``; when that has ended, with ``pid`` and ``status``.
Engines of these daemons come from ``tests.warm`` at ``ADDRESS``.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests import warm

ROOT = Path(__file__).parents[2]
FAKE_DAEMON = str(Path(__file__).with_name("fake_daemon.py"))
SERVE = ("-m", "gatewayd", "serve")


class Forked:
    """A daemon; the part of ``subprocess.Popen`` that tests use.

    Attributes:
        pid: its process id.
        returncode: as ``Popen`` has it; None while it is not known to have ended.
    """

    def __init__(self, forker: Forker, pid: int) -> None:
        self._forker = forker
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, if it has."""
        if self.returncode is None:
            self.returncode = self._forker.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"daemon {self.pid}", timeout or 0)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class Forker:
    """The other side: starts the process, and daemons by it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._lines = ours.makefile("rw", encoding="utf-8")
        self._socket = ours
        self._statuses: dict[int, int] = {}
        with theirs:
            command = [
                *(sys.executable, "-m", "tests.daemon.forked_daemons"),
                *(str(theirs.fileno()), warm.address()),
            ]
            self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), cwd=ROOT)

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path | None = None
    ) -> Forked:
        """Start a daemon.

        Args:
            argv: of a Python: ``fake_daemon.py`` or ``-m gatewayd serve``, with arguments.
            env: its environment, whole.
            log: gets what it writes to standard error.
            cwd: its working directory; None for this process's.
        """
        log.touch()
        asked = {
            "argv": list(argv),
            "env": dict(env),
            "log": str(log),
            "cwd": str(cwd or Path.cwd()),
        }
        with self._lock:
            self._lines.write(json.dumps(asked) + "\n")
            self._lines.flush()
            while "status" in (told := self._next()):
                self._statuses[told["pid"]] = told["status"]
        return Forked(self, told["pid"])

    def ended(self, pid: int) -> int | None:
        """The exit status of a daemon, as ``Popen`` has it; None while it lives."""
        with self._lock:
            while pid not in self._statuses and self._is_told():
                told = self._next()
                self._statuses[told["pid"]] = told["status"]
            return self._statuses.get(pid)

    def close(self) -> None:
        """End the process; daemons that live go on."""
        self._lines.close()
        self._socket.close()
        self._process.wait()

    def _is_told(self) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(0))

    def _next(self) -> Any:
        return json.loads(self._lines.readline())


@functools.cache
def forker() -> Forker:
    """The one of this process."""
    made = Forker()
    atexit.register(made.close)
    return made


def _serve(stream: socket.socket) -> dict[str, Any] | None:
    """Fork for each line; returns in a daemon with what it is to be, and None when all is over."""
    woken, wakes = socket.socketpair()
    woken.setblocking(False)
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    lines = stream.makefile("rw", encoding="utf-8")
    selector = selectors.DefaultSelector()
    for each in (stream, woken):
        selector.register(each, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if woken in ready:
            woken.recv(4096)
            while (ended := _reaped()) is not None:
                print(json.dumps(ended), file=lines, flush=True)
        if stream in ready:
            line = lines.readline()
            if not line:
                return None
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                selector.close()
                for each in (woken, wakes, stream):
                    each.close()
                return dict(json.loads(line))
            print(json.dumps({"pid": pid}), file=lines, flush=True)


def _reaped() -> dict[str, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return {"pid": pid, "status": os.waitstatus_to_exitcode(status)} if pid else None


def _become(daemon: dict[str, Any]) -> None:
    """Be a daemon from here on."""
    ours = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    theirs = daemon["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in theirs if path and path not in ours]
    os.environ.clear()
    os.environ.update(daemon["env"])
    os.chdir(daemon["cwd"])
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(os.open(daemon["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    argv = daemon["argv"]
    if argv[0] == FAKE_DAEMON:
        from tests.daemon import fake_daemon

        sys.argv = argv
        sys.exit(fake_daemon.main())
    assert tuple(argv[:3]) == SERVE
    from gatewayd.cli import main
    from gatewayd.http.server import request_id

    # Otherwise all forked daemons would give the same request ids.
    request_id._draw_bits = Random().getrandbits
    sys.argv = argv[1:]
    main()


if __name__ == "__main__":
    from gatewayd.cli.lazy import gc_paused

    with gc_paused():
        for name in ("gatewayd.cli.serve", "tests.daemon.fake_daemon"):
            importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as ours:
        asked = _serve(ours)
    if asked is not None:
        warm.install(sys.argv[2])
        _become(asked)
