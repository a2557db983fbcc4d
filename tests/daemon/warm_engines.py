"""Engines from a process that has imported torch: each start saves three seconds of a processor.

``python -m tests.daemon.warm_engines ADDRESS FD`` is that process. It listens at an abstract Unix
address until ``FD``, a pipe, reaches its end. Each connection is one engine: the first message has
``argv`` and ``env``, with the engine's socket and the file for standard error as descriptors; the
answers are its ``pid`` and, at its end, its ``status``. An engine whose connection ends first is
killed, as the kernel kills one whose daemon has gone.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gatewayd_exec_local import strategy as executor
from gatewayd_hooks.execution import EngineCommand

FAKE_ENGINE = str(Path(__file__).with_name("fake_engine.py"))
_LONGEST = 1 << 17
_PR_SET_PDEATHSIG = 1


class WarmEngine:
    """An engine; the part of ``subprocess.Popen`` that the executor uses.

    Attributes:
        pid: its process id.
    """

    def __init__(self, address: str, argv: Sequence[str], env: Mapping[str, str], fd: int) -> None:
        self._status: int | None = None
        self._lines = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _connect(self._lines, f"\0{address}")
        asked = json.dumps({"argv": list(argv), "env": dict(env)}).encode()
        socket.send_fds(self._lines, [asked], [fd, 2])
        self.pid: int = json.loads(self._lines.recv(_LONGEST))["pid"]
        self._lines.setblocking(False)

    def poll(self) -> int | None:
        """Its exit status as ``Popen`` has it, None while it runs."""
        if self._status is None:
            with contextlib.suppress(BlockingIOError):
                self._status = json.loads(self._lines.recv(_LONGEST))["status"]
                self._lines.close()
        return self._status

    def wait(self, timeout: float = 30) -> int:
        """Wait until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"engine {self.pid}", timeout)
            time.sleep(0.002)
        return status

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def _connect(lines: socket.socket, address: str) -> None:
    """Wait for a process that has just been started to listen."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return lines.connect(address)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def install(address: str) -> None:
    """Let the executor of this process start engines there, if it knows the command."""
    start = executor.Local._spawn

    def spawn(self: executor.Local, command: EngineCommand, fd: int) -> Any:
        argv = [part.replace("{fd}", str(fd)) for part in command.argv]
        if argv[:2] == [sys.executable, FAKE_ENGINE] or "gatewayd_engine" in argv[:4]:
            return WarmEngine(address, argv, command.env, fd)
        return start(self, command, fd)

    executor.Local._spawn = spawn  # type: ignore[method-assign]


@functools.cache
def address() -> str:
    """Start the process that forks engines, once; it ends with this one."""
    made = f"gatewayd-engines-{os.getpid()}"
    lives, ends = os.pipe()
    command = [sys.executable, "-m", "tests.daemon.warm_engines", made, str(lives)]
    process = subprocess.Popen(command, pass_fds=(lives,), cwd=Path(__file__).parents[2])
    os.close(lives)

    def close() -> None:
        os.close(ends)
        process.wait()

    atexit.register(close)
    return made


class _Server:
    """Forks engines until the pipe ends; ``serve`` returns in an engine with what it is to be."""

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
        self._engines: dict[int, socket.socket] = {}

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
                    if (engine := self._start()) is not None:
                        return engine
                else:
                    self._lost(key.fileobj)

    def _start(self) -> tuple[dict[str, Any], list[int]] | None:
        connection, _ = self._listener.accept()
        asked, fds, _, _ = socket.recv_fds(connection, _LONGEST, 2)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            os.close(self._lives)
            ours = (self._listener, self._woken, self._wakes, connection)
            for each in (*ours, *self._engines.values()):
                each.close()
            return json.loads(asked), fds
        for fd in fds:
            os.close(fd)
        connection.send(json.dumps({"pid": pid}).encode())
        self._engines[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ)
        return None

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                connection = self._engines.pop(ended[0])
                with contextlib.suppress(KeyError):
                    self._selector.unregister(connection)
                status = os.waitstatus_to_exitcode(ended[1])
                with contextlib.suppress(OSError):
                    connection.send(json.dumps({"status": status}).encode())
                connection.close()

    def _lost(self, connection: Any) -> None:
        """The daemon has gone."""
        self._selector.unregister(connection)
        for pid, each in self._engines.items():
            if each is connection:
                os.kill(pid, signal.SIGKILL)


def _become(engine: dict[str, Any], fds: list[int]) -> None:
    """Be an engine from here on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    ours = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    theirs = engine["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in theirs if path and path not in ours]
    os.environ.clear()
    os.environ.update(engine["env"])
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.dup2(fds[1], 2)
    argv = engine["argv"]
    sys.argv = [argv[0], "--fd", str(fds[0])]
    if argv[1] == FAKE_ENGINE:
        from tests.daemon import fake_engine

        fake_engine.main()
        return
    runpy.run_module("gatewayd_engine", run_name="__main__")


def main() -> None:
    """Import, then fork engines."""
    address, lives = sys.argv[1], int(sys.argv[2])
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{address}")
    listener.listen(64)  # who connects waits until all is imported
    from gatewayd_engine.process.threads import settle

    gc.disable()
    settle(None)
    for name in WARM:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    asked = _Server(listener, lives).serve()
    if asked is not None:
        _become(*asked)


WARM = ("torch", "gatewayd_engine.core.loop", "tests.daemon.fake_engine")
"""What engines import: no thread is started by that."""

if __name__ == "__main__":
    main()
