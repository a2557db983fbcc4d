"""``etc/first-answer.sh`` (``make run``): works over a daemon with fake engines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKE_DAEMON = Path(__file__).with_name("fake_daemon.py")

# The daemon is slow to start, as it is where its imports are not cached.
GATEWAYD = f"""#!/bin/sh
if [ "$1" = serve ]; then
  sleep 1
  exec "{sys.executable}" "{FAKE_DAEMON}" server.port="$3"
fi
exec "{sys.executable}" -m gatewayd "$@"
"""

Run = Callable[[int], "subprocess.Popen[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start the script on a port."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    (folder / "gatewayd").write_text(GATEWAYD)
    (folder / "gatewayd").chmod(0o755)
    (tmp_path / "tmp").mkdir()
    started: list[subprocess.Popen[str]] = []

    def start(port: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [ROOT / "etc" / "first-answer.sh"],
            env={
                **os.environ,
                "VENV": str(folder.parent),
                "PORT": str(port),
                "TMPDIR": str(tmp_path / "tmp"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert list((tmp_path / "tmp").iterdir()) == []


class Stranger(BaseHTTPRequestHandler):
    """A server that is ready for everything."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def stranger() -> Iterator[tuple[int, list[str]]]:
    """A stranger's port, and what it was asked."""
    asked: list[str] = []
    handler = type("Handler", (Stranger,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        yield server.server_address[1], asked
        server.shutdown()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def test_the_first_answer_comes_and_ctrl_c_ends_the_daemon(run: Run) -> None:
    port = free_port()
    process = run(port)
    assert process.stdout is not None
    said = ""
    while "Ctrl-C stops the daemon" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    answer = said.partition("> What does")[2].partition("The same with curl")[0]
    assert len(answer.split()) > 5, said
    assert f"curl http://127.0.0.1:{port}/v1/chat/completions" in said
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)


def test_another_server_on_the_port_is_never_taken_for_ours(run: Run) -> None:
    with stranger() as (port, asked):
        process = run(port)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert asked == []
    assert f"port {port} of 127.0.0.1 is in use" in said
    assert "first answer" not in said


def test_ctrl_c_while_the_daemon_starts_leaves_nothing_behind(run: Run) -> None:
    port = free_port()
    process = run(port)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)
