"""Documented examples: run as printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatewayd_lang import Server, set_default_server
from tests.lang.fake_server import Body, FakeServer

TEXT = (Path(__file__).parents[2] / "docs" / "lang.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def answer(prompt: str, body: Body) -> str:
    choices = body.get("structured_outputs", {}).get("choice", ["Paris"])
    return str(choices[0])


@pytest.fixture(autouse=True)
def default(fake: FakeServer) -> Iterator[None]:
    fake.reply = answer
    with Server(fake.url) as server:
        set_default_server(server)
        yield
        set_default_server(None)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 6


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, fake: FakeServer) -> None:
    namespace: dict[str, object] = {}
    exec(EXAMPLES[number], namespace)
    assert fake.asked or "set_default_server" in namespace
