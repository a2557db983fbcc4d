"""Conformance tests of executors, with a real child process at the other end of a socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gatewayd_hooks.execution import EngineCommand, EngineProcess, ExecutorStrategy
from gatewayd_hooks.resources import GatewayResources

_WAIT_S = 20.0

_ECHO = """
import os, socket, sys
stream = socket.socket(fileno=int(sys.argv[1]))
while data := stream.recv(65536):
    stream.sendall(os.environ["GATEWAYD_TEST"].encode() + b":" + data)
"""
_SURROUNDED = """
import json, os, socket, sys
opened = []
for fd in range(3, 1024):
    try:
        os.fstat(fd)
    except OSError:
        continue
    opened += [fd] * (fd != int(sys.argv[1]))
report = {"environment": dict(os.environ), "folder": os.getcwd(), "opened": opened}
socket.socket(fileno=int(sys.argv[1])).sendall(json.dumps(report).encode())
"""
"""Engine that sends its environment, working directory and open descriptors."""
_DEAF = """
import socket, sys, time
socket.socket(fileno=int(sys.argv[1])).sendall(b"!")
time.sleep(600)
"""
"""Engine that starts and then hangs: it never reads its socket again."""


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {_WAIT_S:.0f} s"
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")


class ExecutorConformance:
    """Subclass it and build your executor in ``make``."""

    def make(self) -> ExecutorStrategy:
        """Build the executor; the tests open and close it."""
        raise NotImplementedError("return your executor, built and not opened")

    @contextmanager
    def opened(self) -> Iterator[ExecutorStrategy]:
        """Yield an opened executor."""
        executor = self.make()
        try:
            executor.open(GatewayResources(model="model", num_replicas=1))
            yield executor
        finally:
            executor.close()

    @contextmanager
    def started(self, program: str, **env: str) -> Iterator[EngineProcess]:
        """Yield a started engine, which is killed afterwards."""
        command = EngineCommand([sys.executable, "-c", program, "{fd}"], env, replica=0)
        with self.opened() as executor:
            process = executor.start(command)
            process.socket.settimeout(_WAIT_S)
            try:
                yield process
            finally:
                process.kill()
                _until(lambda: process.poll() is not None, "a killed engine ends")
                process.socket.close()

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    def test_the_socket_works_both_ways_and_the_environment_is_passed(self) -> None:
        with self.started(_ECHO, GATEWAYD_TEST="here") as process:
            assert process.socket.type & socket.SOCK_STREAM
            process.socket.sendall(b"ping")
            assert process.socket.recv(9, socket.MSG_WAITALL) == b"here:ping"

    def test_an_engine_inherits_nothing_from_the_daemon(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GATEWAYD_API_KEY", "canary")
        reader, writer = os.pipe()
        # As a library of the daemon might, by mistake.
        os.set_inheritable(writer, True)
        try:
            with (
                self.started(_SURROUNDED, GATEWAYD_TEST="here") as process,
                process.socket.makefile("rb") as stream,
            ):
                report = json.loads(stream.read())
        finally:
            os.close(reader)
            os.close(writer)
        assert report["environment"]["GATEWAYD_TEST"] == "here"
        assert "GATEWAYD_API_KEY" not in report["environment"]
        assert report["folder"] != os.getcwd()
        assert report["opened"] == []

    def test_each_engine_has_its_own_socket(self) -> None:
        with (
            self.started(_ECHO, GATEWAYD_TEST="a") as first,
            self.started(_ECHO, GATEWAYD_TEST="b") as second,
        ):
            assert first.pid != second.pid
            second.socket.sendall(b"2")
            first.socket.sendall(b"1")
            assert (first.socket.recv(100), second.socket.recv(100)) == (b"a:1", b"b:2")

    def test_an_engine_runs_until_it_is_killed_which_closes_its_socket(self) -> None:
        with self.started(_DEAF) as process:
            assert process.socket.recv(1) == b"!"
            assert process.poll() is None
            assert _is_alive(process.pid)
            process.kill()
            assert process.socket.recv(1) == b""
            _until(lambda: process.poll() is not None, "a killed engine ends")
            assert process.poll() == -signal.SIGKILL

    @pytest.mark.parametrize(
        ("action", "number"), [("terminate", signal.SIGTERM), ("abort", signal.SIGABRT)]
    )
    def test_terminate_and_abort_send_their_signals(self, action: str, number: int) -> None:
        # A byte reports that it is ready: before that, the signal could arrive during interpreter
        # startup.
        program = (
            "import signal, socket, sys, time\n"
            f"signal.signal({int(number)}, lambda *_: sys.exit(7))\n"
            "socket.socket(fileno=int(sys.argv[1])).sendall(b'!')\n"
            "time.sleep(600)\n"
        )
        with self.started(program) as process:
            assert process.socket.recv(1) == b"!"
            getattr(process, action)()
            _until(lambda: process.poll() is not None, f"an engine ends after {action}")
            assert process.poll() == 7

    def test_exit_status_is_stable_across_polls(self) -> None:
        with self.started("import sys; sys.exit(3)") as process:
            _until(lambda: process.poll() is not None, "an engine ends by itself")
            assert [process.poll(), process.poll()] == [3, 3]

    def test_signals_to_an_exited_engine_are_ignored(self) -> None:
        with self.started("pass") as process:
            _until(lambda: process.poll() is not None, "an engine ends by itself")
            process.terminate()
            process.abort()
            process.kill()

    def test_an_engine_reads_end_of_file_when_the_gateway_closes_the_socket(self) -> None:
        with self.started(_ECHO, GATEWAYD_TEST="") as process:
            process.socket.close()
            _until(lambda: process.poll() is not None, "an engine that reads its end ends")
            assert process.poll() == 0

    def test_a_command_that_does_not_exist_raises_an_os_error(self) -> None:
        with self.opened() as executor, pytest.raises(OSError, match=r"."):
            executor.start(EngineCommand(["/does/not/exist", "{fd}"], {}, replica=0))

    def test_a_hung_engine_ends_when_the_daemon_is_killed(self) -> None:
        reader, writer = os.pipe()
        daemon = os.fork()
        if daemon == 0:  # never returns to pytest
            try:
                with self.opened() as executor:
                    command = EngineCommand([sys.executable, "-c", _DEAF, "{fd}"], {}, replica=0)
                    process = executor.start(command)
                    # If the daemon were killed before the engine runs, the test would prove little.
                    process.socket.recv(1)
                    os.write(writer, f"{process.pid}\n".encode())
                    time.sleep(600)
            finally:
                # Without the exit handlers of pytest, which are the parent's.
                os._exit(1)
        os.close(writer)
        try:
            with os.fdopen(reader) as pipe:
                engine = int(pipe.readline())
                assert _is_alive(engine)
        finally:
            os.kill(daemon, signal.SIGKILL)
            os.waitpid(daemon, 0)
        _until(lambda: not _is_alive(engine), "the engine of a killed daemon ends")
