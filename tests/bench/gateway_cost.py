"""Benchmark: overhead of the gateway's HTTP path, against a bare ASGI app with the same answers.

Each is a process of its own with one event loop, pinned to one core; the client has another and
only looks for the ends of answers, and ``client_busy`` in the details says how far it is from being
the limit. The rounds alternate who is first; their medians are compared. The gateway is measured
twice: open, and for a tenant with a key, limits and a budget, whose prompts have 2,000 characters.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import uvloop

from tests.bench import report, servers

AT_LEAST = 0.5
STREAM_TOKENS = 128
WARMUP_SECONDS = 1.0
PROMPT = "What does os.path.join do?"
LONG_PROMPT = f"{PROMPT} " * 75


class Load(NamedTuple):
    """What the clients ask for, again and again."""

    name: str
    concurrency: int
    max_tokens: int
    is_stream: bool
    prompt: str

    def request(self, port: int, key: str = "") -> bytes:
        """The bytes of one request."""
        body = msgspec.json.encode(
            {
                "model": "nano",
                "messages": [{"role": "user", "content": self.prompt}],
                "max_tokens": self.max_tokens,
                "stream": self.is_stream,
            }
        )
        bearer = b"Authorization: Bearer %b\r\n" % key.encode() if key else b""
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%b"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (port, bearer, len(body), body)
        )


WHOLES = Load("whole", 32, 1, False, PROMPT)
STREAMS = Load("streamed", 64, STREAM_TOKENS, True, PROMPT)
LONG_WHOLES = Load("whole, long prompt", 32, 1, False, LONG_PROMPT)
LONG_STREAMS = Load("streamed, long prompt", 64, STREAM_TOKENS, True, LONG_PROMPT)

LOADS = {
    "gatewayd": (WHOLES, STREAMS),
    "tenant": (LONG_WHOLES, LONG_STREAMS),
    "bare": (WHOLES, STREAMS, LONG_WHOLES, LONG_STREAMS),
}
"""Of each server."""


class Rates(NamedTuple):
    """What came back, after the warm-up.

    Attributes:
        requests: per second.
        chunks: events per second, without ``[DONE]``.
        client_busy: share of a core that the client used.
    """

    requests: float
    chunks: float
    client_busy: float


class Connection(asyncio.Protocol):
    """Sends the same request again and again, counts requests and chunks."""

    def __init__(self, request: bytes, *, stream: bool) -> None:
        self._request = request
        self._stream = stream
        self._tail = b""
        self._transport: asyncio.Transport | None = None
        self.num_requests = self.num_chunks = 0
        self.failure = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport  # type: ignore[assignment]
        self._ask()

    def _ask(self) -> None:
        self._tail = b""
        if self._transport is not None:
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count, and ask again after the end of an answer."""
        seen = self._tail + data
        if not self._tail and not seen.startswith(b"HTTP/1.1 200"):
            self.failure = seen[:200].decode(errors="replace")
        if self._stream:
            # The tail is kept so that nothing that is looked for hides between two pieces.
            self.num_chunks += seen.count(b"data: ") - self._tail.count(b"data: ")
            self._tail = seen[-32:]
            is_over = seen.endswith(b"\r\n0\r\n\r\n")
        else:
            self._tail = seen
            is_over = seen.endswith(b"}")
        if is_over:
            self.num_requests += 1
            self.num_chunks -= self._stream  # [DONE] is no chunk
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody but ``drive`` should close it."""
        self._transport = None

    def close(self) -> None:
        """Stop."""
        if self._transport is not None:
            self._transport.close()
        else:
            self.failure = self.failure or "the server closed the connection"


async def drive(port: int, load: Load, seconds: float, key: str = "") -> Rates:
    """Load a server.

    Raises:
        RuntimeError: an answer was not 200 or a connection was closed.
    """
    loop = asyncio.get_running_loop()
    connections: list[Connection] = []

    def connect() -> Connection:
        connections.append(Connection(load.request(port, key), stream=load.is_stream))
        return connections[-1]

    for _ in range(load.concurrency):
        await loop.create_connection(connect, "127.0.0.1", port)
    await asyncio.sleep(WARMUP_SECONDS)
    requests = sum(c.num_requests for c in connections)
    chunks = sum(c.num_chunks for c in connections)
    begin, busy = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    spent = time.perf_counter() - begin
    requests = sum(c.num_requests for c in connections) - requests
    chunks = sum(c.num_chunks for c in connections) - chunks
    busy = time.process_time() - busy
    for connection in connections:
        connection.close()
    failures = {c.failure for c in connections if c.failure}
    if failures:
        raise RuntimeError(f"port {port}: {failures}")
    return Rates(requests / spent, chunks / spent, busy / spent)


def placement() -> tuple[list[str], set[int]]:
    """A command that puts a server on the first core, and the other cores for the client."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        return [], set(cores)
    return ["taskset", "--cpu-list", str(cores[0])], set(cores[1:])


def measure(which: str, seconds: float) -> dict[Load, Rates]:
    """Start a server, load it in its ways, stop it."""
    app = str(Path(__file__).with_name("gateway_app.py"))
    on_its_core, _ = placement()
    port = servers.free_port()
    with tempfile.TemporaryDirectory() as logs:
        command = [*on_its_core, sys.executable, app, which, "--port", str(port)]
        log = Path(logs) / "log"
        with servers.serving(command, port, log, path="/livez"):
            key = log.read_text().partition("key ")[2].strip()
            return {load: uvloop.run(drive(port, load, seconds, key)) for load in LOADS[which]}


def compare(rounds: int, seconds: float) -> tuple[list[report.Finding], list[dict[str, object]]]:
    """Measure all servers in turn.

    Returns:
        The findings, and every single measurement.
    """
    found: dict[tuple[str, Load], list[Rates]] = defaultdict(list)
    details: list[dict[str, object]] = []
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, placement()[1])
    try:
        for turn in range(rounds):
            for which in list(LOADS) if turn % 2 == 0 else reversed(LOADS):
                for load, rates in measure(which, seconds).items():
                    found[which, load].append(rates)
                    details.append({"server": which, "load": load.name, **rates._asdict()})
    finally:
        os.sched_setaffinity(0, mine)

    def finding(title: str, unit: str, load: Load, server: str = "gatewayd") -> report.Finding:
        def middle(rates: Sequence[Rates]) -> float:
            return report.median([getattr(one, unit) for one in rates])

        ours, bare = middle(found[server, load]), middle(found["bare", load])
        return report.Finding(title, f"{unit}/s", ours, bare, "bare ASGI app", AT_LEAST)

    findings = [
        finding(f"chunks, {STREAMS.concurrency} streams", "chunks", STREAMS),
        finding(f"answers of {STREAM_TOKENS} tokens, streamed", "requests", STREAMS),
        finding("answers of one token, whole", "requests", WHOLES),
        finding("a limited tenant's chunks", "chunks", LONG_STREAMS, "tenant"),
        finding("a limited tenant's answers, whole", "requests", LONG_WHOLES, "tenant"),
    ]
    return findings, details


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    findings, details = compare(args.rounds, args.seconds)
    return report.publish(
        *("Cost of the gateway's HTTP path", where, findings),
        as_json=args.json,
        strict=args.strict,
        details=details,
    )


if __name__ == "__main__":
    sys.exit(main())
