"""What the gateway's HTTP path costs: beside a bare ASGI app that writes the same chunks.

Both are processes of their own with one event loop; the client only looks for the ends of
answers, and ``client_busy`` in the details says how far it is from being the limit. Requests per
second: one token, no stream. Chunks per second: 128 tokens, streamed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import msgspec
import uvloop

from tests.bench import report, servers

AT_LEAST = 0.5
PROMPT = list(range(1000, 1016))
STREAM_TOKENS = 128
WARMUP_SECONDS = 1.0


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


async def drive(port: int, concurrency: int, seconds: float, *, stream: bool) -> dict[str, float]:
    """Load a server; rates are counted after a warm-up.

    Raises:
        RuntimeError: an answer was not 200 or a connection was closed.
    """
    tokens = STREAM_TOKENS if stream else 1
    body = msgspec.json.encode(
        {"model": "nano", "prompt": PROMPT, "max_tokens": tokens, "stream": stream}
    )
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    connections: list[Connection] = []

    def connect() -> Connection:
        connections.append(Connection(head.encode() + body, stream=stream))
        return connections[-1]

    for _ in range(concurrency):
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
    return {
        "requests_per_second": requests / spent,
        "chunks_per_second": chunks / spent,
        "client_busy": busy / spent,
    }


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    details = []
    app = str(Path(__file__).with_name("gateway_app.py"))
    for turn in range(args.rounds):
        for which in ("gatewayd", "bare") if turn % 2 == 0 else ("bare", "gatewayd"):
            port = servers.free_port()
            with tempfile.TemporaryDirectory() as logs:
                command = [sys.executable, app, which, "--port", str(port)]
                log = Path(logs) / "log"
                with servers.serving(command, port, log, path="/v1/models"):
                    for stream in (False, True):
                        got = uvloop.run(drive(port, args.concurrency, args.seconds, stream=stream))
                        name = "chunks_per_second" if stream else "requests_per_second"
                        rates[which, name].append(got[name])
                        details.append({"server": which, "stream": stream, **got})
    findings = [
        report.Finding(
            title,
            f"{unit}/s",
            report.median(rates["gatewayd", name]),
            report.median(rates["bare", name]),
            "bare ASGI app",
            AT_LEAST,
        )
        for title, unit, name in (
            ("one token, no stream", "requests", "requests_per_second"),
            (f"{STREAM_TOKENS} tokens, streamed", "chunks", "chunks_per_second"),
        )
    ]
    title = f"Cost of the gateway's HTTP path, concurrency {args.concurrency}"
    return report.publish(
        *(title, where, findings), as_json=args.json, strict=args.strict, details=details
    )


if __name__ == "__main__":
    sys.exit(main())
