"""Client address: an IPv6 network is one client, and no address is taken for a tenant.

The oracle of who is one client is ``ipaddress``: networks of 64 bits, and mapped addresses.
"""

from __future__ import annotations

import asyncio
import random
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any

from uvicorn.server import ServerState

from gatewayd.errors import GatewayError
from gatewayd.http.asgi import Receive, Scope, Send
from gatewayd.http.bodies import BodyBudget, release_body, reserve_body
from gatewayd.http.server.client_address import queue_name, subscriber
from gatewayd.http.server.edge import EdgeProtocol
from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.http.server.listener import server_config
from gatewayd.http.server.request_gate import RequestGate
from gatewayd.tenants.principal import IN_SCOPE, OPERATOR
from gatewayd.tenants.records import NAME
from tests.gatewayd.http.server.in_memory_connections import Wire

MOST = 64 * 2**20


def test_networks_are_told_apart_and_addresses_of_one_are_not() -> None:
    rng = random.Random(64)
    known: dict[str, object] = {}
    for _ in range(2000):
        network = 0x20010DB8 << 96 | rng.randrange(8) << 64
        address = IPv6Address(network | rng.getrandbits(64))
        said = rng.choice([str(address), address.exploded, f"{address}%eth0"])
        whose = ip_network((int(address) >> 64 << 64, 64))
        assert known.setdefault(subscriber(said), whose) == whose
    assert len(known) == 8
    for _ in range(100):
        old = str(IPv4Address(rng.getrandbits(32)))
        assert subscriber(f"::ffff:{old}") == subscriber(old) == old


def test_no_name_of_an_address_may_be_a_tenants() -> None:
    assert NAME.fullmatch("10.0.0.1"), "a tenant may be called so"
    for address in ("10.0.0.1", "2001:db8::1", "::1", "::ffff:10.0.0.1", "somewhere", ""):
        assert not NAME.fullmatch(queue_name(address))


class Served:
    """A gate before a route that holds a megabyte of a body for each request until told."""

    def __init__(self) -> None:
        self.bodies = BodyBudget(MOST)
        self.gate = RequestGate(self._hold, lambda _: None, self.bodies)
        self.end = asyncio.Event()
        self.refused = 0

    async def _hold(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reserve_body(scope, 2**20)
        except GatewayError:
            self.refused += 1
            return
        await self.end.wait()
        release_body(scope)

    async def ask(self, address: str) -> None:
        scope: Any = {"path": "/", "method": "POST", "client": (address, 1), IN_SCOPE: OPERATOR}
        await self.gate(scope, None, None)  # type: ignore[arg-type]


async def test_all_addresses_of_a_network_have_the_bodies_of_one() -> None:
    served = Served()
    many = [asyncio.create_task(served.ask(f"2001:db8::{n:x}")) for n in range(64)]
    for _ in range(1000):
        await asyncio.sleep(0)
    assert served.bodies.total == MOST // 2
    before = served.refused
    other = asyncio.create_task(served.ask("2001:db8:0:1::1"))
    await asyncio.sleep(0.05)
    assert (served.refused, served.bodies.total) == (before, MOST // 2 + 2**20)
    served.end.set()
    await asyncio.gather(*many, other)
    assert served.bodies.total == 0


async def test_all_connections_of_a_network_count_together() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Never asked."""

    config = server_config(app, lambda *_: None, EdgeLimits(peer_connections=3), loop="none")
    config.load()
    made: Any = config.http_protocol_class
    state = ServerState()

    def connect(address: str) -> tuple[EdgeProtocol, Wire]:
        edge: EdgeProtocol = made(config=config, server_state=state, app_state={})
        wire = Wire(address)
        edge.connection_made(wire)
        return edge, wire

    opened = [connect(f"2001:db8::{number:x}") for number in range(5)]
    assert [b"503" in wire.written for _, wire in opened] == [False] * 3 + [True] * 2
    assert b"503" not in connect("2001:db8:0:1::1")[1].written
    for edge, _ in opened:
        edge.connection_lost(None)
    assert b"503" not in connect("2001:db8::ffff")[1].written
