"""Admin socket peers: kernel-verified; other users are disconnected before a byte is read."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from asyncio.trsock import TransportSocket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd.admin.client import AdminError, call
from gatewayd.admin.peer import peer_in
from gatewayd.admin.server import AdminServer
from gatewayd.http.asgi import send_json

OWN = os.geteuid()
STRANGER = OWN + 4711


def names(uid: int) -> Callable[..., bytes]:
    """What the kernel says of a peer with this user."""

    def getsockopt(self: Any, level: int, option: int, size: int = 0) -> bytes:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED)
        return struct.pack("3i", 99, uid, uid)

    return getsockopt


def cannot_tell(self: Any, *arguments: int) -> bytes:
    raise OSError("no such option")


async def ask(path: Path) -> tuple[Any, list[Any]]:
    """One request; its answer, or why there is none, and the peers that came as far as the app."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(peer_in(scope))
        await send_json(send, {"uid": seen[-1].uid})

    server = AdminServer(app, str(path))
    running = asyncio.create_task(server.run_until_stopped())
    try:
        return await asyncio.to_thread(call, str(path), "GET", "/admin/strategies"), seen
    except AdminError as error:
        return error, seen
    finally:
        server.should_exit = True
        await running


@pytest.mark.parametrize("uid", [OWN, 0])
async def test_the_daemons_user_and_root_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    monkeypatch.setattr(TransportSocket, "getsockopt", names(uid))
    answer, seen = await ask(tmp_path / "admin.sock")
    assert answer == {"uid": uid}
    assert [str(peer) for peer in seen] == [f"uid {uid}, pid 99"]


@pytest.mark.parametrize("kernel", [names(STRANGER), cannot_tell])
async def test_strangers_and_those_whom_nobody_knows_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Any
) -> None:
    monkeypatch.setattr(TransportSocket, "getsockopt", kernel)
    answer, seen = await ask(tmp_path / "admin.sock")
    assert isinstance(answer, AdminError)
    assert "denies access" in str(answer)
    assert seen == []


async def test_the_kernel_is_really_asked(tmp_path: Path) -> None:
    answer, seen = await ask(tmp_path / "admin.sock")
    assert answer == {"uid": OWN}
    assert seen[0].pid == os.getpid()
