"""Benchmark: CPU time per streamed token of each API, without a fleet's cost or a socket.

The app is the daemon's; only the edge is left out, which is the same for all. The rounds go through
the APIs in turn; their medians are compared with the chat completions'.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import defaultdict
from dataclasses import replace
from typing import Any

import uvloop

from gatewayd.config.strategies import ProtocolTable
from gatewayd.http.app import build_app
from gatewayd.http.asgi import App, Message
from gatewayd.http.server.disconnect import EXTENSION, EdgeDisconnectSignal
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind
from tests.bench import report
from tests.bench.gateway_app import services

AT_LEAST = 0.4
TOKENS, STREAMS = 256, 16
MESSAGES = [{"role": "user", "content": "What does os.path.join do?"}]
ASK = {"model": "nano", "messages": MESSAGES, "max_tokens": TOKENS, "stream": True}
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": ASK,
    "/v1/messages": ASK,
    "/api/chat": {**ASK, "options": {"num_predict": TOKENS}},
}


def app() -> App:
    """All routes of the daemon."""
    host = PluginHost(Catalog.installed())
    names = ProtocolTable().strategies
    protocols = [(name, host.strategy(Kind.PROTOCOL, name, {})) for name in names]
    return build_app(replace(services(), protocols=protocols))


async def stream(served: App, path: str) -> None:
    """Read one answer."""
    body = json.dumps(APIS[path]).encode()

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        if message.get("status", 200) != 200:
            raise RuntimeError(f"{path}: {message}")

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "extensions": {EXTENSION: EdgeDisconnectSignal()},
    }
    await served(scope, receive, send)


async def measure(rounds: int) -> dict[str, list[float]]:
    """Microseconds of a token, for each API and round."""
    served, found = app(), defaultdict(list)
    for turn in range(rounds + 1):  # the first one warms up
        for path in APIS:
            began = time.process_time()
            await asyncio.gather(*(stream(served, path) for _ in range(STREAMS)))
            if turn:
                spent = time.process_time() - began
                found[path].append(1e6 * spent / (STREAMS * TOKENS))
    return found


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    found = {path: report.median(costs) for path, costs in uvloop.run(measure(args.rounds)).items()}
    base = 1e6 / found.pop("/v1/chat/completions")
    findings = [
        report.Finding(f"{path}, streamed", "tokens/s", 1e6 / cost, base, "chat", AT_LEAST)
        for path, cost in found.items()
    ]
    title = "Cost of a streamed token through each API"
    return report.publish(title, where, findings, as_json=args.json, strict=args.strict, details=[])


if __name__ == "__main__":
    sys.exit(main())
