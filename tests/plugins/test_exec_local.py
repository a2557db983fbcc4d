"""``exec_local``: child engines are connected, isolated, and never left behind."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gatewayd_exec_local import parent_death_signal
from gatewayd_exec_local.strategy import Local, LocalProcess
from gatewayd_hooks.execution import EngineCommand
from gatewayd_hooks.resources import GatewayResources

Start = Callable[..., LocalProcess]
SLEEP = "import time; time.sleep(60)"
DAEMON = f"""
import sys, time
from gatewayd_exec_local.strategy import Local
from gatewayd_hooks.execution import EngineCommand
process = Local().start(EngineCommand([sys.executable, "-c", {SLEEP!r}], {{}}, 0))
print(process.pid, flush=True)
if sys.argv[1] == "stays":
    time.sleep(60)
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code as an engine; ``{fd}`` in it is its socket's descriptor."""
    executor = Local()
    executor.open(GatewayResources(model="none", num_replicas=1))
    started: list[LocalProcess] = []

    def start_(code: str, **env: str) -> LocalProcess:
        command = EngineCommand([sys.executable, "-c", code], env, replica=len(started))
        started.append(executor.start(command))
        return started[-1]

    yield start_
    for process in started:
        process.kill()
        wait(process)
        process.socket.close()
    executor.close()


def wait(process: LocalProcess) -> int:
    return until(process.poll)


def until(found: Callable[[], int | None], seconds: float = 30) -> int:
    deadline = time.monotonic() + seconds
    while (value := found()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return value


def read(process: LocalProcess) -> bytes:
    process.socket.settimeout(30)
    data = b""
    while chunk := process.socket.recv(4096):
        data += chunk
    return data


def test_an_engine_talks_over_its_socket_and_its_exit_status_is_told(start: Start) -> None:
    process = start(
        "import os, socket, sys\n"
        "s = socket.socket(fileno={fd})\n"
        "s.sendall(s.recv(9) + b' ' + os.environ['COLOUR'].encode() + b' %d' % os.getpid())\n"
        "sys.exit(7)",
        COLOUR="red",
    )
    process.socket.sendall(b"hello")
    assert read(process) == b"hello red %d" % process.pid
    assert wait(process) == 7


def test_the_daemons_environment_is_not_kept(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    process = start("import os; os.write({fd}, repr(sorted(os.environ)).encode())", TOLD="yes")
    assert "INHERITED" not in (found := ast.literal_eval(read(process).decode()))
    assert "TOLD" in found


def test_an_engine_reads_nothing_of_what_is_typed_to_the_daemon(start: Start) -> None:
    theirs, ours = os.pipe()
    kept = os.dup(0)
    os.write(ours, b"typed")
    os.close(ours)
    os.dup2(theirs, 0)
    try:
        process = start("import os; os.write({fd}, b'%d' % len(os.read(0, 9)))")
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(theirs)
    assert read(process) == b"0"


def test_ctrl_c_in_the_terminal_passes_an_engine_by(start: Start) -> None:
    process = start(f"import os; os.write({{fd}}, b'up'); {SLEEP}")
    assert process.socket.recv(2) == b"up"
    # The terminal signals the foreground process group, which the engine is not in.
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid


def test_no_other_descriptor_of_the_daemon_is_inherited(start: Start) -> None:
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    try:
        process = start(f"import os; os.fstat({{fd}}); os.write({theirs}, b'leak')")
        assert wait(process) == 1  # a bad descriptor
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("end", "number"),
    [
        (LocalProcess.terminate, signal.SIGTERM),
        (LocalProcess.abort, signal.SIGABRT),
        (LocalProcess.kill, signal.SIGKILL),
    ],
)
def test_each_way_to_end_an_engine_is_its_signal_and_may_come_late(
    start: Start, end: Callable[[LocalProcess], None], number: int
) -> None:
    process = start(f"import os; os.write({{fd}}, b'up'); {SLEEP}")
    assert process.socket.recv(2) == b"up"
    end(process)
    assert wait(process) == -number
    end(process)
    assert process.poll() == -number


def test_a_missing_program_is_an_error_that_leaves_nothing_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError, match="no-such-engine"):
        Local().start(EngineCommand(["no-such-engine", "{fd}"], {}, 0))
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_engine_closes_its_socket_by_ending(start: Start) -> None:
    process = start("pass")
    assert read(process) == b""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the socket ends an orphan")
@pytest.mark.parametrize("ending", ["killed", "returned"])
def test_an_engine_that_ignores_its_socket_ends_with_the_daemon(ending: str) -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, "stays" if ending == "killed" else "goes"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with daemon:
        assert daemon.stdout is not None
        engine = int(daemon.stdout.readline())
        if ending == "killed":
            # Not while the child is still on its way to asking for the kernel's help.
            until(lambda: 1 if command_line(engine)[1:] == ["-c", SLEEP] else None)
            assert is_alive(engine)
            daemon.kill()
    until(lambda: None if is_alive(engine) else 1)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the socket ends an orphan")
def test_an_engine_whose_daemon_ended_first_is_never_begun(tmp_path: Path) -> None:
    trace = tmp_path / "begun"
    absent = 1 << 22  # above the largest process id there can be
    done = subprocess.run(
        [
            sys.executable,
            parent_death_signal.__file__,
            str(absent),
            "/bin/sh",
            "sh",
            "-c",
            f"touch {trace}",
        ],
        check=False,
    )
    assert done.returncode == 1
    assert not trace.exists()


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent to look does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"
