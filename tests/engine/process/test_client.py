"""Engine client: events in order, one loss report, silence after close."""

from __future__ import annotations

import asyncio
import socket
import struct

from gatewayd_engine.process.client import EngineClient
from gatewayd_engine.process.frames import EngineSocket, FrameError, encode
from gatewayd_engine.process.messages import Abort, Event, Loading


class _Owner:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.losses: list[Exception | None] = []
        self.told = asyncio.Event()

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self.told.set()

    def on_lost(self, exc: Exception | None) -> None:
        self.losses.append(exc)
        self.told.set()


async def _connected() -> tuple[EngineClient, socket.socket, _Owner]:
    ours, theirs = socket.socketpair()
    owner = _Owner()
    return await EngineClient.connect(ours, owner.on_event, owner.on_lost), theirs, owner


async def test_commands_and_events_cross() -> None:
    client, theirs, owner = await _connected()
    client.send(Abort([7]))
    engine = EngineSocket(theirs)
    await asyncio.to_thread(engine.wait_readable, 5)
    assert engine.read_available() == [Abort([7])]
    engine.send(Loading("weights", 0.1))
    await asyncio.wait_for(owner.told.wait(), 30)
    assert owner.events == [Loading("weights", 0.1)]
    client.close()
    engine.close()
    await asyncio.sleep(0)
    assert owner.losses == []


async def test_the_end_of_the_stream_is_told_once_as_none() -> None:
    client, theirs, owner = await _connected()
    theirs.close()
    await asyncio.wait_for(owner.told.wait(), 30)
    client.send(Abort([1]))
    client.close()
    await asyncio.sleep(0.01)
    assert owner.losses == [None]


async def test_half_a_frame_at_the_end_is_told_as_a_fault() -> None:
    _, theirs, owner = await _connected()
    theirs.sendall(encode(Loading("weights", 0.1))[:-1])
    theirs.close()
    await asyncio.wait_for(owner.told.wait(), 30)
    assert [type(loss) for loss in owner.losses] == [FrameError]


async def test_garbage_ends_the_connection_and_delivers_nothing() -> None:
    _, theirs, owner = await _connected()
    with theirs:
        theirs.sendall(struct.pack("<I", 3) + b"\xff\xfe\xfd" + encode(Loading("w", 0.1)))
        await asyncio.wait_for(owner.told.wait(), 30)
        await asyncio.sleep(0.01)
    assert owner.events == []
    assert [type(loss) for loss in owner.losses] == [FrameError]
