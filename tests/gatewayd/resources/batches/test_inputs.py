"""Batch inputs: validation, cost, expiry."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from pathlib import Path

import openai
import pytest

from gatewayd.resources.batches.lines import all_lines
from gatewayd.resources.batches.validation import InputValidation, ValidationResult
from gatewayd.text.text_model import TextModel
from tests.gatewayd.batch_gateway import (
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


LINE_ENDS = 48 << 20


async def test_a_file_of_line_ends_is_refused_at_once(text: TextModel, folder: Path) -> None:
    """Six batches of it were most of a core for a minute."""
    async with serving(text, folder, says([300])) as gateway:
        content = jsonl([line("a")]) + b"\n" * LINE_ENDS
        first = await until_status(gateway, await create(gateway, content), "failed")
        began = time.process_time()
        made = [
            await gateway.openai.batches.create(
                input_file_id=first.input_file_id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
            )
            for _ in range(6)
        ]
        for one in made:
            failed = await until_status(gateway, one, "failed")
            assert failed.errors is not None
            assert [error.code for error in failed.errors.data or []] == ["too_many_requests"]
        assert time.process_time() - began < 2


def checked(checking: InputValidation) -> tuple[ValidationResult, int]:
    """What is found, and in how many pieces of a line."""
    pieces = 1
    while (found := checking.step(0.0)) is None:
        pieces += 1
    return found, pieces


def test_what_is_found_is_the_same_however_small_the_pieces(tmp_path: Path) -> None:
    for content, code, number, param in WRONG:
        file = tmp_path / "in.jsonl"
        file.write_bytes(content)
        whole = InputValidation(file, CHAT, most_lines=5, line_bytes=8 << 20).step(60)
        found, _ = checked(InputValidation(file, CHAT, most_lines=5, line_bytes=8 << 20))
        assert whole == found
        assert [(one.code, one.line, one.param) for one in found.errors] == [(code, number, param)]


def test_one_line_as_long_as_the_file_is_passed_in_pieces(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"x" * (20 << 20) + b"\n" + jsonl([line("a")]))
    found, pieces = checked(InputValidation(file, CHAT, most_lines=9, line_bytes=1 << 20))
    assert [(one.code, one.line) for one in found.errors] == [("line_too_long", 1)]
    assert found.total == 2
    assert 20 <= pieces <= 24


def test_of_many_wrong_lines_a_hundred_are_told_and_the_rest_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"{\n" * 1_000_000)
    found, pieces = checked(InputValidation(file, CHAT, most_lines=10_000_000, line_bytes=1 << 20))
    assert len(found.errors) == 100
    assert pieces <= 101


def test_names_of_lines_take_little_memory_however_long_they_are(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    name = "\U0001f600" * 505
    file.write_bytes(
        b"".join(
            json.dumps(line(f"{name}{n:07d}"), ensure_ascii=False).encode() + b"\n"
            for n in range(10_000)
        )
    )
    checking = InputValidation(file, CHAT, most_lines=50_000, line_bytes=1 << 20)
    tracemalloc.start()
    try:
        assert checking.step(60) == ValidationResult(10_000, "nano", [])
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 3 << 20  # the names themselves are 20 MB


def test_bodies_are_sent_as_they_are_but_for_their_class(tmp_path: Path) -> None:
    given = [b"{}", b'{ "a":[{}] }', b'{"a":1,"priority":"realtime","b":2}', b'{"priority":null}']
    file = tmp_path / "in.jsonl"
    text = b'{"custom_id":"%d","method":"POST","url":"/v1/chat/completions","body":%b }\n'
    file.write_bytes(b"".join(text % (n, body) for n, body in enumerate(given)))
    for body, found in zip(given, all_lines(file, CHAT, 4, ()), strict=True):
        pairs = json.loads(found.body, object_pairs_hook=list)
        assert len({key for key, _ in pairs}) == len(pairs)
        assert json.loads(found.body) == {**json.loads(body), "priority": "batch"}


async def test_large_bodies_are_not_taken_apart(folder: Path, tmp_path: Path) -> None:
    """Each would be 2.8 million objects, of which the collector walks all, again and again."""
    junk = b'"junk":[' + b"[]," * 2_790_000 + b'[]],"model":"nano"'
    request = b'{"custom_id":"%d","method":"POST","url":"' + CHAT.encode() + b'","body":{%b}}\n'
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"".join(request % (n, junk) for n in range(4)))
    began = time.process_time()
    checking = InputValidation(file, CHAT, most_lines=10, line_bytes=8 << 20)
    assert checking.step(60) == ValidationResult(4, "nano", [])
    assert time.process_time() - began < 4  # decoded, it is 2 seconds for each and 0.5 GB
    (first,) = all_lines(file, CHAT, 4, {2, 3, 4})
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
        async with asyncio.timeout(30):
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
    now, most, go_on = 0, 0, InputValidation.step

    def slow(self: InputValidation, seconds: float) -> ValidationResult | None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        time.sleep(0.02)
        now -= 1
        return go_on(self, seconds)

    monkeypatch.setattr(InputValidation, "step", slow)
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
