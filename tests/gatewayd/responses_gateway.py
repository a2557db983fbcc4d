"""Gateway with a store, and requests for its responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai.types.responses import Response, ResponseOutputMessage

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, Script
from tests.gatewayd.gateway import Gateway, running
from tests.gatewayd.store_fixtures import opened

ANSWER = [300, 301, 302]

ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]
"""Events of an answer that is one message."""


@asynccontextmanager
async def serving(text: TextModel, folder: Path, script: Script) -> AsyncIterator[Gateway]:
    with opened(folder) as durable:
        async with running(text, FakeFleet(script), durable=durable) as gateway:
            yield gateway


def checked(response: Response) -> Response:
    """By the SDK's own types, which its client does not enforce."""
    Response.model_validate(response.model_dump(warnings="error"))
    return response


def message_of(response: Response) -> ResponseOutputMessage:
    (message,) = response.output
    assert isinstance(message, ResponseOutputMessage)
    return message


async def ask(gateway: Gateway, **fields: Any) -> Response:
    made: Response = await gateway.openai.responses.create(
        **{"model": "nano", "input": "hi", **fields}
    )
    return made
