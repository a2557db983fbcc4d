"""Gateway with a store, and requests for its batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from openai.types import Batch

from gatewayd.resources.files.records import OVER
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, Job, Script, hangs, says
from tests.gatewayd.gateway import Gateway, running
from tests.gatewayd.store_fixtures import opened

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def serving(
    text: TextModel, folder: Path, script: Script, window: float = 86_400, **batches: int
) -> AsyncIterator[Gateway]:
    with opened(folder, batches=batches) as durable:
        durable.batches.limits = durable.batches.limits._replace(window=window)  # type: ignore[arg-type]
        async with running(text, FakeFleet(script), durable=durable) as gateway:
            yield gateway


def line(custom_id: object, content: str = "hi", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    request = {"model": "nano", "messages": messages, "max_tokens": 4, **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": request}


def jsonl(lines: Iterable[object]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


async def create(gateway: Gateway, content: bytes, **fields: Any) -> Batch:
    file = await gateway.openai.files.create(file=("in.jsonl", content), purpose="batch")
    values = {"endpoint": CHAT, "completion_window": "24h", **fields}
    return await gateway.openai.batches.create(input_file_id=file.id, **values)


async def until_status(gateway: Gateway, batch: Batch, *wanted: str) -> Batch:
    async with asyncio.timeout(30):
        while (found := await gateway.openai.batches.retrieve(batch.id)).status not in wanted:
            assert found.status not in OVER, found
            await asyncio.sleep(0.01)
    return found


async def results(gateway: Gateway, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    text = (await gateway.openai.files.content(file_id)).text
    return [json.loads(one) for one in text.splitlines()]


def every_other_hangs() -> Script:
    number, done = count(), says([300])

    async def script(job: Job) -> None:
        await (hangs if next(number) % 2 else done)(job)

    return script
