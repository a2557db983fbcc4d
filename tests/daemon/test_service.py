"""Service manager protocol: real notify socket and socket activation."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

Start = Callable[..., Any]
FAKE_DAEMON = str(Path(__file__).with_name("fake_daemon.py"))
# The variables name a process, so whoever becomes the daemon writes them.
AS_SYSTEMD = """
import os, sys
fd, *argv = sys.argv[1:]
os.dup2(int(fd), 3, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="http")
os.execv(sys.executable, [sys.executable, *argv])
"""


class Systemd:
    """The other end of ``NOTIFY_SOCKET``: what was said, and when."""

    def __init__(self, path: Path) -> None:
        self.env = {"NOTIFY_SOCKET": str(path)}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def close(self) -> None:
        self._socket.close()

    def watch(self, seconds: float) -> dict[str, str]:
        """Also wait for signs of life, this often."""
        return {**self.env, "WATCHDOG_USEC": str(int(seconds * 1e6))}

    def next(self, seconds: float = 30) -> list[str]:
        """The lines of one message."""
        self._socket.settimeout(seconds)
        return self._socket.recv(4096).decode().splitlines()

    def wait(self, line: str, seconds: float = 30) -> list[str]:
        """The next message with a line that begins so."""
        deadline = time.monotonic() + seconds
        while True:
            lines = self.next(max(0.01, deadline - time.monotonic()))
            if any(each.startswith(line) for each in lines):
                return lines

    def feeds(self, count: int) -> None:
        """Wait for so many signs of life."""
        for _ in range(count):
            self.wait("WATCHDOG=1")

    def gap(self, seconds: float, enough: float = float("inf")) -> float:
        """The longest time without a sign of life from now on, or one that is enough."""
        last, longest, end = time.monotonic(), 0.0, time.monotonic() + seconds
        while (now := time.monotonic()) < end and longest <= enough:
            try:
                lines = self.next(min(end - now, 0.1))
            except TimeoutError:
                lines = []
            now = time.monotonic()
            longest = max(longest, now - last)
            if "WATCHDOG=1" in lines:
                last = now
        return longest

    def skip(self) -> None:
        """Forget what was said so far."""
        self._socket.setblocking(False)
        try:
            while True:
                self._socket.recv(4096)
        except BlockingIOError:
            return


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    found = Systemd(tmp_path / "notify")
    yield found
    found.close()


def test_systemd_is_told_from_loading_to_the_end(start_daemon: Start, systemd: Systemd) -> None:
    env = {**systemd.env, "FAKE_LOAD_MS": "300"}
    daemon = start_daemon(env=env, **{"server.drain_seconds": 7})
    loading = systemd.next()
    assert loading[0] == "EXTEND_TIMEOUT_USEC=30000000"
    assert loading[1].startswith("STATUS=loading nano; engine 0 starting: ")
    assert systemd.wait("READY=1") == ["READY=1", "STATUS=serving nano, 0 running, 0 waiting"]
    daemon.stop()
    stopping = systemd.wait("STOPPING=1")
    # Seven for the requests, the rest for the engines and the store.
    assert stopping == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=22000000", "STATUS=finishing 0 requests"]


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"env": {"FAKE_FAULTS": "load_fatal"}}, "the model folder has no config.json"),
        (
            {"command": ("-m", "gatewayd", "serve", "--port", "0", "--model", "/nowhere")},
            "/nowhere",
        ),
        ({"command": ("-m", "gatewayd", "serve", "--config", "/nowhere")}, "cannot read /nowhere"),
    ],
)
def test_the_last_status_of_one_that_cannot_start_is_the_reason(
    start_daemon: Start, systemd: Systemd, how: dict[str, Any], status: str
) -> None:
    env = {**systemd.env, **how.pop("env", {})}
    daemon = start_daemon(**how, env=env, wait=False)
    assert daemon.process.wait(30) in (1, 78)
    said: list[str] = []
    while not said or not any(status in line for line in said):
        said = systemd.next(0.1)  # a timeout if it was never said
    assert [line for line in said if line.startswith("STATUS=")]


def test_a_daemon_that_is_well_feeds_the_watchdog(start_daemon: Start, systemd: Systemd) -> None:
    # Long, so that a busy machine is no failure: it feeds after half of it at most.
    start_daemon(env=systemd.watch(3))
    systemd.skip()
    assert systemd.gap(4.5) < 3


def test_a_watchdog_of_another_process_is_not_fed(start_daemon: Start, systemd: Systemd) -> None:
    start_daemon(env={**systemd.watch(0.4), "WATCHDOG_PID": "1"})
    systemd.skip()
    assert systemd.gap(1.0) > 0.9


def test_a_blocked_loop_feeds_nobody(start_daemon: Start, systemd: Systemd) -> None:
    daemon = start_daemon(env=systemd.watch(0.8), **{"test.block": 2.2})
    systemd.skip()
    daemon.process.send_signal(signal.SIGUSR1)
    assert systemd.gap(20, enough=2.0) > 2.0
    daemon._wait(
        "watchdog keep-alive to the service manager withheld: the event loop was blocked", 30
    )
    systemd.feeds(2)


async def test_a_hung_engine_is_no_life_until_it_is_declared_lost(
    start_daemon: Start, client: Any, systemd: Systemd
) -> None:
    settings = {"engine.hang_seconds": 2.4}
    lives = {"FAKE_FAULTS": "hang@2", "FAKE_LIVES": f"{systemd.env['NOTIFY_SOCKET']}.lives:1"}
    daemon = start_daemon(env={**systemd.watch(0.8), **lives}, **settings)
    systemd.skip()
    asking = asyncio.create_task(client.complete(daemon, "x", 8, stream=False))
    # Doubt begins after half of these seconds.
    assert await asyncio.to_thread(systemd.gap, 20, 0.8) > 0.8
    silent = time.monotonic()
    await asyncio.to_thread(systemd.feeds, 2)
    assert time.monotonic() - silent < 10, "the engine is lost after 2.4 s"
    assert (await asking).is_complete  # by the next engine
    assert daemon.said("engine 0 has been silent for")
    systemd.skip()
    await asyncio.to_thread(systemd.feeds, 2)


async def test_an_engine_that_speaks_and_computes_nothing_is_no_life(
    start_daemon: Start, client: Any, systemd: Systemd
) -> None:
    settings = {"engine.hang_seconds": 1, "server.drain_seconds": 0.1}
    daemon = start_daemon(env={**systemd.watch(0.8), "FAKE_FAULTS": "stall@2"}, **settings)
    asking = asyncio.create_task(client.complete(daemon, "x", 8, stream=False))
    await asyncio.to_thread(daemon._wait, "engine 0 has computed nothing for", 30)
    systemd.skip()
    assert await asyncio.to_thread(systemd.gap, 1.0) > 0.9
    assert daemon.readyz()[0] == 200  # nobody else sees it
    daemon.process.send_signal(signal.SIGTERM)
    assert (await asking).error is not None


def test_a_reload_is_told_and_a_bad_file_changes_nothing(
    start_daemon: Start, systemd: Systemd, tmp_path: Path
) -> None:
    file = tmp_path / "g.toml"
    file.write_text('[log]\nlevel = "info"\n')
    daemon = start_daemon(env={**systemd.env, "GATEWAYD_CONFIG": str(file)})
    systemd.wait("READY=1")
    for text, said in (
        ('[log]\nlevel = "debug"\n', None),
        ('[log]\nlevel = "loud"\n', "log.level = 'loud'"),
        ('[queue]\nmax_waiting_requests = 3\n[router]\nstrategy = "nope"\n', "nope"),
        ('[log]\nlevel = "info"\n', None),
    ):
        file.write_text(text)
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        daemon.process.send_signal(signal.SIGHUP)
        reloading, moment = systemd.wait("RELOADING=1")
        assert reloading == "RELOADING=1"
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert before <= int(moment.removeprefix("MONOTONIC_USEC=")) <= after
        lines = systemd.wait("READY=1")
        status = lines[1] if len(lines) > 1 else ""
        assert ("was refused" in status) is (said is not None)
        assert said is None or said in status
    figures = httpx.get(f"{daemon.url}/metrics").text
    assert 'gatewayd_config_reloads_total{outcome="applied"} 2.0' in figures
    assert 'gatewayd_config_reloads_total{outcome="refused"} 2.0' in figures
    assert not daemon.said("limit max_waiting_requests set to 3")


def test_many_reloads_leak_no_descriptor_and_fail_no_request(
    start_daemon: Start, tmp_path: Path
) -> None:
    file = tmp_path / "g.toml"
    file.write_text("")
    daemon = start_daemon(env={"GATEWAYD_CONFIG": str(file)})
    body = {"model": "nano", "prompt": "x", "max_tokens": 2}
    folder = Path(f"/proc/{daemon.process.pid}/fd")
    with httpx.Client(base_url=daemon.url) as http:
        http.post("/v1/completions", json=body)
        before = len(list(folder.iterdir()))
        for _ in range(20):
            daemon.process.send_signal(signal.SIGHUP)
            assert http.post("/v1/completions", json=body).status_code == 200
        daemon._wait("log level set to", 30)
        assert len(list(folder.iterdir())) <= before + 2
        assert http.get("/readyz").status_code == 200


# Sockets that somebody else listens on


def activated(start_daemon: Start, listener: socket.socket, **more: Any) -> Any:
    fd = listener.fileno()
    command = ("-c", AS_SYSTEMD, str(fd), FAKE_DAEMON, "server.port=1", "test.backoff=0.05")
    return start_daemon(command, pass_fds=(fd,), **more)


async def test_requests_are_served_across_a_restart_through_the_socket(
    start_daemon: Start, client: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        daemon = activated(start_daemon, listener, env={"FAKE_STEP_MS": "5"})
        assert daemon.url == f"http://127.0.0.1:{listener.getsockname()[1]}"
        answers: list[Any] = []
        is_over = asyncio.Event()

        async def ask() -> None:
            async with httpx.AsyncClient(timeout=60) as fresh:
                while not is_over.is_set():
                    answers.append(await type(client)(fresh).complete(daemon, "x", 20))

        asking = [asyncio.create_task(ask()) for _ in range(6)]
        async with asyncio.timeout(30):
            while len(answers) < 6:
                await asyncio.sleep(0.01)
        daemon.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.process.wait, 30) == 0
        before = len(answers)
        await asyncio.to_thread(activated, start_daemon, listener, env={"FAKE_STEP_MS": "5"})
        async with asyncio.timeout(30):
            while len(answers) <= before + 6:
                await asyncio.sleep(0.01)
        is_over.set()
        await asyncio.gather(*asking)  # no connection was refused or cut
    assert {answer.status for answer in answers} == {200}
    assert all(answer.is_complete and answer.error is None for answer in answers)


async def test_a_stream_goes_on_to_its_end_while_the_next_daemon_waits(
    start_daemon: Start, client: Any, make_answer: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        daemon = activated(start_daemon, listener, env={"FAKE_STEP_MS": "10"})
        answer = make_answer()
        task = asyncio.create_task(client.complete(daemon, "x", 150, answer=answer))
        await asyncio.wait_for(answer.first.wait(), 30)
        daemon.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(daemon._wait, "draining requests", 30)
        await asyncio.sleep(0.2)
        # What connects now waits for the next daemon; it is neither refused nor answered 503.
        with pytest.raises(httpx.ReadTimeout):
            await client.http.get(f"{daemon.url}/readyz", timeout=0.2)
        assert not task.done()
        assert (await asyncio.wait_for(task, 30)).is_complete
        assert await asyncio.to_thread(daemon.process.wait, 30) == 0


async def test_a_kept_connection_is_served_once_more_and_told_to_go(
    start_daemon: Start, client: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        daemon = activated(start_daemon, listener)
        body = {"model": "nano", "prompt": "x", "max_tokens": 2}
        await client.http.post(f"{daemon.url}/v1/completions", json=body)
        daemon.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(daemon._wait, "draining requests", 30)
        await asyncio.sleep(0.1)  # a new connection would wait for the next daemon
        last = await client.http.post(f"{daemon.url}/v1/completions", json=body, timeout=60)
        assert last.status_code == 200
        assert last.headers["connection"] == "close"
        assert await asyncio.to_thread(daemon.process.wait, 30) == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other", "write FileDescriptorName=http into its unit"),
        ("http", "write ListenStream=ADDRESS:PORT"),
    ],
)
def test_a_socket_that_cannot_be_served_is_one_sentence(
    start_daemon: Start, tmp_path: Path, name: str, words: str
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        script = AS_SYSTEMD.replace('"http"', repr(name))
        command = ("-c", script, str(listener.fileno()), FAKE_DAEMON)
        daemon = start_daemon(command, pass_fds=(listener.fileno(),), wait=False)
        assert daemon.process.wait(30) == 1
    assert daemon.said(words)
    assert not daemon.said("Traceback")


def test_sockets_for_another_process_are_left_alone(start_daemon: Start) -> None:
    env = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
    daemon = start_daemon(env=env)
    assert daemon.readyz()[0] == 200
