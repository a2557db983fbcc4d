"""Programs of the project, forked from a process that has imported torch, instead of started.

Each start saves three seconds of a processor, and there are hundreds.

``python -m tests.warm ADDRESS FD`` is that process, one for each that runs tests. It listens at an
abstract Unix address until ``FD``, a pipe, reaches its end. A connection is one program: the first
message says what it runs and carries its descriptors; the answers are its ``pid`` and, at its end,
its ``status``. A program whose connection ends first is killed, as the kernel kills an engine whose
daemon has gone.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import os
import re
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gatewayd_exec_local import parent_death_signal

ROOT = Path(__file__).parents[1]
COLD = "GATEWAYD_TESTS_COLD"
"""Where this variable is set, programs are started in the usual way."""
FAKE_ENGINE = str(ROOT / "tests/daemon/fake_engine.py")
IMPORTED = (
    *("torch", "numpy", "pytest", "hypothesis"),
    *("gatewayd_engine.core.loop", "gatewayd.cli.serve", "tests.daemon.fake_engine"),
)
"""Imported before the first fork; none of these starts a thread."""
_LONGEST = 1 << 17
_PR_SET_PDEATHSIG = 1
_Popen = subprocess.Popen
_HIGH = 200
"""First of the descriptors that no program uses: received ones are moved there first."""


class WarmPopen(subprocess.Popen[Any]):
    """``subprocess.Popen``, whose child is forked where it is one of the project's programs.

    Not ``gatewayd serve``, whose process is what tests of it look at, and nothing that asyncio
    starts, which waits for children of this process alone.
    """

    _lines: socket.socket | None = None

    def _execute_child(self, args: Any, *rest: Any) -> None:
        named = dict(zip(_CHILD_PARAMETERS, rest, strict=True))
        argv = [os.fspath(part) for part in args] if isinstance(args, list | tuple) else []
        program = _program(argv)
        is_own = named["preexec_fn"] is None and sys._getframe(2).f_globals["__name__"] != _ASYNCIO
        if program is None or not is_own:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        standard = [(0, "p2cread"), (1, "c2pwrite"), (2, "errwrite")]
        fds = {there: named[name] if named[name] != -1 else there for there, name in standard}
        env = os.environ if named["env"] is None else named["env"]
        asked = {
            "argv": program,
            "env": dict(env),
            "cwd": os.fspath(named["cwd"] or os.getcwd()),
            "fds": [*fds, *named["pass_fds"]],
            "is_session": bool(named["start_new_session"]),
        }
        self._lines = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _connect(self._lines, address())
        message = json.dumps(asked).encode()
        socket.send_fds(self._lines, [message], [*fds.values(), *named["pass_fds"]])
        self.pid = json.loads(self._lines.recv(_LONGEST))["pid"]
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(named[name] for name in pipes))  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._lines is None:
            waited: tuple[int, int] = super()._try_wait(flags)  # type: ignore[misc]
            return waited
        self._lines.setblocking(not flags & os.WNOHANG)
        try:
            status = json.loads(self._lines.recv(_LONGEST))["status"]
        except BlockingIOError:
            return 0, 0
        self._lines.close()
        return self.pid, status

    def _internal_poll(self, *args: Any, **named: Any) -> int | None:
        if self._lines is None:
            return super()._internal_poll(*args, **named)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


_ASYNCIO = "asyncio.unix_events"
_CHILD_PARAMETERS = [*inspect.signature(subprocess.Popen._execute_child).parameters][2:]  # type: ignore[attr-defined]
_PROGRAMS = re.compile(r"pytest|gatewayd|gatewayd_engine(\.[a-z_.]+)?")


def _program(argv: list[str]) -> list[str] | None:
    """Return the module or file that a command runs, with arguments; None for other programs."""
    if COLD in os.environ:
        return None
    if parent_death_signal.__file__ in argv:
        argv = argv[argv.index(parent_death_signal.__file__) + 3 :]
    if len(argv) < 3 or argv[0] != sys.executable:
        return None
    argv = argv[2:] if argv[1] == "-P" else argv[1:]
    if argv[0] == FAKE_ENGINE:
        return argv
    is_own = argv[0] == "-m" and _PROGRAMS.fullmatch(argv[1]) is not None
    return argv if is_own and argv[1:3] != ["gatewayd", "serve"] else None


def install(at: str | None = None) -> None:
    """Replace ``subprocess.Popen`` by ``WarmPopen``, which uses the process at an address."""
    if at is not None:
        _addresses.append(at)
    subprocess.Popen = WarmPopen  # type: ignore[misc]


_addresses: list[str] = []
_lock = threading.Lock()


def address() -> str:
    """Return the address of the forking process, started if there is none yet."""
    with _lock:
        if not _addresses:
            _addresses.append(_start())
    return _addresses[0]


def _start() -> str:
    """Start the process that forks, once; it ends with this one."""
    made = f"gatewayd-tests-{os.getpid()}"
    lives, ends = os.pipe()
    command = [sys.executable, "-m", "tests.warm", made, str(lives)]
    process = _Popen(command, pass_fds=(lives,), cwd=ROOT)
    os.close(lives)

    def close() -> None:
        os.close(ends)
        process.wait()

    atexit.register(close)
    return made


def _connect(lines: socket.socket, at: str) -> None:
    """Wait for a process that has just been started to listen."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return lines.connect(f"\0{at}")
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class _Server:
    """Forks until the pipe ends; ``serve`` returns in a child with what it is to be."""

    def __init__(self, listener: socket.socket, lives: int) -> None:
        self._listener = listener
        self._lives = lives
        self._woken, self._wakes = socket.socketpair()
        for end in (self._woken, self._wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector = selectors.DefaultSelector()
        for each in (listener, lives, self._woken):
            self._selector.register(each, selectors.EVENT_READ)
        self._running: dict[int, socket.socket] = {}

    def serve(self) -> tuple[dict[str, Any], list[int]] | None:
        """Returns None in this process, at its end."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._lives:
                    return None
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._reap()
                elif key.fileobj is self._listener:
                    if (child := self._fork()) is not None:
                        return child
                else:
                    self._lost(key.fileobj)

    def _fork(self) -> tuple[dict[str, Any], list[int]] | None:
        connection, _ = self._listener.accept()
        asked, fds, _, _ = socket.recv_fds(connection, _LONGEST, 8)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            os.close(self._lives)
            ours = (self._listener, self._woken, self._wakes, connection)
            for each in (*ours, *self._running.values()):
                each.close()
            return json.loads(asked), fds
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):
            connection.send(json.dumps({"pid": pid}).encode())
        self._running[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ)
        return None

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                connection = self._running.pop(ended[0])
                with contextlib.suppress(KeyError):
                    self._selector.unregister(connection)
                with contextlib.suppress(OSError):
                    connection.send(json.dumps({"status": ended[1]}).encode())
                connection.close()

    def _lost(self, connection: Any) -> None:
        """Its other end is closed: kill the process."""
        self._selector.unregister(connection)
        for pid, each in self._running.items():
            if each is connection:
                os.kill(pid, signal.SIGKILL)


def _become(child: dict[str, Any], fds: list[int]) -> None:
    """Run a module or a file from here on, as the interpreter would."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if child["is_session"]:
        os.setsid()
    ours = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    theirs = child["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in theirs if path and path not in ours]
    os.environ.clear()
    os.environ.update(child["env"])
    os.chdir(child["cwd"])
    nothing = os.open(os.devnull, os.O_RDWR)
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH) for fd in (nothing, nothing, *fds)]
    for fd in (nothing, *fds):
        os.close(fd)
    for here, there in zip(moved, (0, 1, *child["fds"]), strict=True):
        os.dup2(here, there)
        os.close(here)
    install(sys.argv[1])
    argv = child["argv"]
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")


def main() -> None:
    """Import, then fork."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{sys.argv[1]}")
    listener.listen(64)  # those who connect wait until all is imported
    from gatewayd_engine.process.threads import configure_threads

    gc.disable()
    configure_threads(None)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    child = _Server(listener, int(sys.argv[2])).serve()
    if child is not None:
        _become(*child)


if __name__ == "__main__":
    main()
