"""Inputs of batches: what may be wrong with them, what they cost, and when they go."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from gatewayd.batches.lines import Checked, check, lines
from gatewayd.text.model import TextModel
from tests.gatewayd.batching import (
    CHAT,
    create,
    every_other_hangs,
    jsonl,
    line,
    results,
    serving,
    until_status,
)
from tests.gatewayd.fake_fleet import hangs, says

WRONG = [
    (b"", "empty_file", None, None),
    (b"\n \n", "empty_file", None, None),
    (jsonl([line("a")]) + b"{nope\n", "invalid_json_line", 2, None),
    (b"[1]\n", "invalid_json_line", 1, None),
    (b"\xff\n", "invalid_json_line", 1, None),
    (b"[" * 100_000 + b"\n", "invalid_json_line", 1, None),
    (jsonl([line("a"), line("b"), line("a")]), "duplicate_custom_id", 3, "custom_id"),
    (jsonl([line(7)]), "invalid_custom_id", 1, "custom_id"),
    (jsonl([line("")]), "invalid_custom_id", 1, "custom_id"),
    (jsonl([{**line("a"), "method": "GET"}]), "invalid_method", 1, "method"),
    (jsonl([{**line("a"), "url": "/v1/completions"}]), "invalid_url", 1, "url"),
    (jsonl([{**line("a"), "body": []}]), "invalid_body", 1, "body"),
    (jsonl([line("a", stream=True)]), "invalid_body", 1, "body.stream"),
    (jsonl([line("a", "x" * (8 << 20)), line("b")]), "line_too_long", 1, None),
    (jsonl([line(str(n)) for n in range(6)]), "too_many_requests", None, None),
]


@pytest.mark.parametrize(("content", "code", "number", "param"), WRONG)
async def test_a_wrong_input_fails_before_anything_is_run(
    text: TextModel, folder: Path, content: bytes, code: str, number: int | None, param: str | None
) -> None:
    async with serving(text, folder, says([300]), lines=5) as gateway:
        batch = await create(gateway, content)
        batch = await until_status(gateway, batch, "failed")
        assert gateway.fleet.jobs == []
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert batch.errors.object == "list"
    (error,) = batch.errors.data or []
    assert (error.code, error.line, error.param) == (code, number, param)
    assert error.message
    assert batch.output_file_id is None


async def test_large_bodies_are_not_taken_apart(folder: Path, tmp_path: Path) -> None:
    """Each would be 2.8 million objects, of which the collector walks all, again and again."""
    junk = b'"junk":[' + b"[]," * 2_790_000 + b'[]],"model":"nano"'
    request = b'{"custom_id":"%d","method":"POST","url":"' + CHAT.encode() + b'","body":{%b}}\n'
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"".join(request % (n, junk) for n in range(4)))
    began = time.process_time()
    assert check(file, CHAT, most_lines=10, line_bytes=8 << 20) == Checked(4, "nano", [])
    assert time.process_time() - began < 4  # decoded, it is 2 seconds for each and 0.5 GB
    (first, *_) = lines(file, CHAT, {2, 3, 4})
    assert first.body == b"{" + junk + b',"priority":"batch"}'


async def test_a_body_that_is_no_text_fails_alone(text: TextModel, folder: Path) -> None:
    content = jsonl([line("a"), line("b", "?")]).replace(b"?", b"\xff")
    async with serving(text, folder, says([300])) as gateway:
        batch = await until_status(gateway, await create(gateway, content), "completed")
        (failed,) = await results(gateway, batch.error_file_id)
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("b", 400)
    assert batch.request_counts is not None
    assert batch.request_counts.completed == 1


async def test_an_input_that_is_gone_at_the_end_takes_no_answer_with_it(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder, every_other_hangs(), window=2) as gateway:
        batch = await create(gateway, jsonl([line(str(n)) for n in range(4)]))
        async with asyncio.timeout(10):
            while not (counts := batch.request_counts) or counts.completed < 2:
                await asyncio.sleep(0.01)
                batch = await gateway.openai.batches.retrieve(batch.id)
        (folder / "files" / batch.input_file_id).unlink()
        batch = await until_status(gateway, batch, "expired")
        answered = await results(gateway, batch.output_file_id)
    assert [one["custom_id"] for one in answered] == ["0", "2"]


async def test_many_inputs_are_looked_through_one_by_one(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, most = 0, 0

    def slow(*args: Any, **kwargs: Any) -> Checked:
        nonlocal now, most
        now += 1
        most = max(most, now)
        time.sleep(0.02)
        now -= 1
        return check(*args, **kwargs)

    monkeypatch.setattr("gatewayd.batches.run.check", slow)
    async with serving(text, folder, says([300])) as gateway:
        made = [await create(gateway, jsonl([line("a")])) for _ in range(8)]
        for one in made:
            await until_status(gateway, one, "completed")
    assert most == 1


async def test_a_last_line_without_a_newline_and_empty_lines_are_fine(
    text: TextModel, folder: Path
) -> None:
    content = jsonl([line("a")]) + b"\n\r\n" + jsonl([line("b")]).rstrip()
    async with serving(text, folder, says([300])) as gateway:
        batch = await until_status(gateway, await create(gateway, content), "completed")
        answered = await results(gateway, batch.output_file_id)
    assert [one["custom_id"] for one in answered] == ["a", "b"]


async def test_an_input_cannot_be_deleted_while_it_is_read(text: TextModel, folder: Path) -> None:
    async with serving(text, folder, hangs) as gateway:
        batch = await create(gateway, jsonl([line("a")]))
        with pytest.raises(openai.ConflictError, match=batch.id):
            await gateway.openai.files.delete(batch.input_file_id)
        await gateway.openai.batches.cancel(batch.id)
        await until_status(gateway, batch, "cancelled")
        await gateway.openai.files.delete(batch.input_file_id)


async def test_an_input_that_is_gone_fails_the_batch(text: TextModel, folder: Path) -> None:
    async with serving(text, folder, hangs) as gateway:
        batch = await create(gateway, jsonl([line("a")]))
        await until_status(gateway, batch, "in_progress")
    (folder / "files" / batch.input_file_id).unlink()
    async with serving(text, folder, hangs) as gateway:
        batch = await until_status(gateway, batch, "failed")
    assert batch.errors is not None
    assert [one.code for one in batch.errors.data or []] == ["input_unreadable"]
