"""Fixtures: real daemon processes on free ports, over fake engines or the embedded model."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.forked_daemons import FAKE_DAEMON, ROOT, SERVE, Forked, forker

NANO_DAEMON = (*SERVE, "--port", "0")


@dataclass
class Running:
    """A daemon process and its log."""

    process: subprocess.Popen[bytes] | Forked
    log: Path
    url: str = ""

    def events(self) -> list[dict[str, Any]]:
        """Log lines so far."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def said(self, words: str) -> bool:
        return words in self.log.read_text()

    def wait_listening(self, seconds: float = 30) -> None:
        self._wait("listening on ", seconds)
        event = next(e["event"] for e in self.events() if e["event"].startswith("listening on "))
        self.url = event.split()[2].rstrip(",")

    def wait_ready(self, seconds: float = 60) -> None:
        self.wait_listening(seconds)
        self._wait("ready after", seconds)

    def _wait(self, words: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.said(words):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)

    def readyz(self) -> tuple[int, dict[str, Any]]:
        answer = httpx.get(f"{self.url}/readyz?verbose=1", timeout=60)
        return answer.status_code, answer.json()

    def is_live(self) -> bool:
        return httpx.get(f"{self.url}/livez", timeout=60).status_code == 200

    @property
    def engine_pid(self) -> int | None:
        pid: int | None = self.readyz()[1]["replicas"][0]["pid"]
        return pid

    def kill_engine(self, number: int = signal.SIGKILL) -> int:
        pid = self.engine_pid
        assert pid is not None
        os.kill(pid, number)
        return pid

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)


StartDaemon = Callable[..., Running]


def popen(
    arguments: Sequence[str], env: Mapping[str, str], log: Path, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A Python that writes its standard error to a file."""
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=pass_fds,
        )


@pytest.fixture
def start_daemon(tmp_path: Path, fresh_store: Path) -> Iterator[StartDaemon]:
    """Start daemons; settings as ``**{"server.port": 1}``, ``FAKE_*`` as ``env``."""
    started: list[Running] = []

    def start(
        command: tuple[str, ...] = (FAKE_DAEMON,),
        env: dict[str, str] | None = None,
        wait: bool = True,
        pass_fds: tuple[int, ...] = (),
        **settings: object,
    ) -> Running:
        arguments = list(command)
        if command == (FAKE_DAEMON,):
            settings = {"server.port": 0, "test.backoff": 0.05, **settings}
            arguments += [f"{key}={value}" for key, value in settings.items()]
        log = tmp_path / f"daemon-{len(started)}.log"
        state = tmp_path / f"state-{len(started)}"
        shutil.copytree(fresh_store, state / "gatewayd")
        whole = {**os.environ, "XDG_STATE_HOME": str(state), **(env or {})}
        if command == (FAKE_DAEMON,) or command[: len(SERVE)] == SERVE:
            daemon = Running(forker().start(arguments, whole, log), log)
        else:
            daemon = Running(popen(arguments, whole, log, pass_fds), log)
        started.append(daemon)
        if wait:
            daemon.wait_ready()
        return daemon

    yield start
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.wait()


@contextmanager
def nano_daemon(folder: Path, **env: str) -> Iterator[Running]:
    """A daemon with the embedded model for several tests; it must end well."""
    log = folder / "log"
    process = forker().start(NANO_DAEMON, {**os.environ, **env}, log, ROOT)
    running = Running(process, log)
    try:
        running.wait_ready()
        yield running
        assert running.stop() == 0
    finally:
        process.kill()
        process.wait()


@dataclass
class Answer:
    """One request's end, as its client saw it.

    Attributes:
        status: of the HTTP answer.
        text: what was streamed.
        error: OpenAI's error object, also from an event in the stream.
        is_complete: the stream ended by ``[DONE]``.
        seconds: it took.
    """

    status: int = 0
    text: str = ""
    num_chunks: int = 0
    error: dict[str, Any] | None = None
    is_complete: bool = False
    seconds: float = 0.0
    first: asyncio.Event = field(default_factory=asyncio.Event)


class Client:
    """Sends completions."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def complete(
        self,
        daemon: Running,
        prompt: str,
        max_tokens: int = 16,
        *,
        stream: bool = True,
        answer: Answer | None = None,
        **more: object,
    ) -> Answer:
        """Send one and read its answer to the end."""
        answer = Answer() if answer is None else answer
        body = {
            "model": "nano",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
            **more,
        }
        began = time.monotonic()
        url = f"{daemon.url}/v1/completions"
        async with self.http.stream("POST", url, json=body) as response:
            answer.status = response.status_code
            if not stream or response.status_code != 200:
                whole = json.loads(await response.aread())
                answer.error = whole.get("error")
                if answer.error is None:
                    answer.text = whole["choices"][0]["text"]
                    answer.is_complete = True
            else:
                async for line in response.aiter_lines():
                    self._take(answer, line)
        answer.seconds = time.monotonic() - began
        return answer

    @staticmethod
    def _take(answer: Answer, line: str) -> None:
        if line == "data: [DONE]":
            answer.is_complete = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            if "error" in event:
                answer.error = event["error"]
            else:
                answer.text += "".join(choice["text"] for choice in event["choices"])
                answer.num_chunks += 1
                answer.first.set()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    limits = httpx.Limits(max_connections=300)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:
        yield Client(http)


@pytest.fixture
def make_answer() -> type[Answer]:
    return Answer
