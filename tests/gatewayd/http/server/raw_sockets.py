"""Raw socket requests for tests."""

from __future__ import annotations

import asyncio
import json

from tests.gatewayd.gateway import Gateway

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


async def exchange(gateway: Gateway, *parts: bytes, gap: float = 0.0) -> bytes:
    """Send parts with gaps between them; read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(gap)
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def error_code(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head
    assert b"connection: close" in head.lower()
    assert head.count(b"\r\nx-request-id: ") == 1
    code: str = json.loads(body)["error"]["code"]
    return code
