"""Server processes for benchmarks, always stopped at the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

START_SECONDS = 600  # a large model is quantized or unpacked while it is loaded


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RunningServer(NamedTuple):
    """A server that answers."""

    url: str
    pid: int


@contextmanager
def serving(
    command: Sequence[str],
    port: int,
    log: Path,
    *,
    path: str = "/v1/models",
    env: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Run a server while the block lasts; gives its URL once ``path`` answers 200.

    Raises:
        RuntimeError: it ended or did not answer in time; has the end of its log.
    """
    with running(command, port, log, path=path, env=env) as server:
        yield server.url


@contextmanager
def running(
    command: Sequence[str],
    port: int,
    log: Path,
    *,
    path: str,
    env: Mapping[str, str] | None = None,
) -> Iterator[RunningServer]:
    """As ``serving``, and gives its process too."""
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
        try:
            _wait(url + path, process, log)
            yield RunningServer(url, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.02)
    # The log may be in a folder that is removed.
    end = log.read_text("utf-8", errors="replace")[-2000:]
    raise RuntimeError(f"{process.args!r} does not serve:\n{end}")


def gatewayd(port: int, *options: str) -> list[str]:
    """The daemon of this checkout on the embedded model."""
    program = "from gatewayd.cli import main; main()"
    return [sys.executable, "-c", program, "serve", "--port", str(port), *options]


def llama_cpp(
    binary: Path, gguf: Path, port: int, *, slots: int, slot_tokens: int, threads: int
) -> list[str]:
    """llama.cpp's server: everything by default but the number of slots and their length."""
    return [
        str(binary),
        *("--model", str(gguf), "--port", str(port), "--threads", str(threads)),
        *("--parallel", str(slots), "--ctx-size", str(slots * slot_tokens)),
    ]
