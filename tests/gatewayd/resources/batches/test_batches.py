"""Batches over a real port: openai's client, stops and restarts."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from sqlalchemy import Connection

from gatewayd.errors import (
    AdmissionPaused,
    Conflict,
    EngineLost,
    QueueFull,
    RequestCancelled,
)
from gatewayd.resources.batches import records
from gatewayd.resources.batches.internal_calls import InternalAnswer
from gatewayd.resources.batches.line import _wait
from gatewayd.resources.batches.records import NEXT, LineResult
from gatewayd.resources.files.content_store import Draft
from gatewayd.resources.files.records import OVER
from gatewayd.store.ids import new_id
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.scheduling import Priority
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
from tests.gatewayd.fake_fleet import Job, fails, hangs, says
from tests.gatewayd.gateway import until
from tests.gatewayd.store_fixtures import opened


async def test_each_line_is_answered_as_the_route_would(text: TextModel, folder: Path) -> None:
    wanted = [line(f"q{n}", f"question {n}") for n in range(40)]
    wanted[7]["body"]["temperature"] = 9
    wanted[9]["body"]["model"] = "nobody"
    async with serving(text, folder, says([300, 301], cached=2)) as gateway:
        batch = await create(gateway, jsonl(wanted), metadata={"who": "me"})
        assert batch.status == "validating"
        batch = await until_status(gateway, batch, "completed")
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"completed": 38, "failed": 2, "total": 40}
        assert batch.metadata == {"who": "me"}
        assert batch.model == "nano"
        times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
        assert sorted(times) == list(times)  # type: ignore[type-var]
        assert batch.expires_at == batch.created_at + 86_400
        answered = await results(gateway, batch.output_file_id)
        failed = await results(gateway, batch.error_file_id)
        priorities = {job.request.priority for job in gateway.fleet.jobs}
    assert [one["custom_id"] for one in answered] == [f"q{n}" for n in range(40) if n not in (7, 9)]
    assert [one["custom_id"] for one in failed] == ["q7", "q9"]
    assert len({one["id"] for one in [*answered, *failed]}) == 40
    assert priorities == {Priority.BATCH}
    usage = Counter[str]()
    for one in answered:
        assert one["error"] is None
        assert one["response"]["status_code"] == 200
        assert one["response"]["request_id"].startswith("req_")
        completion = ChatCompletion.model_validate(one["response"]["body"])
        assert completion.usage is not None
        usage["input"] += completion.usage.prompt_tokens
        usage["output"] += completion.usage.completion_tokens
    assert batch.usage is not None
    assert (batch.usage.input_tokens, batch.usage.output_tokens) == (
        usage["input"],
        usage["output"],
    )
    assert batch.usage.input_tokens_details.cached_tokens == 2 * 38
    assert [one["response"]["status_code"] for one in failed] == [400, 404]
    assert failed[0]["response"]["body"]["error"]["param"] == "temperature"


async def test_a_batch_goes_on_soon_after_admission_is_resumed(
    text: TextModel, folder: Path
) -> None:
    """Whatever the pause would have lasted, which is what clients are told."""
    refuse, answer, attempts = fails(AdmissionPaused("paused", retry_after=86_400)), says([300]), []

    async def script(job: Job) -> None:
        attempts.append(job)
        await (refuse if len(attempts) <= 2 else answer)(job)

    async with serving(text, folder, script) as gateway:
        batch = await create(gateway, jsonl([line("a")]))
        batch = await until_status(gateway, batch, "completed")
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 1
    assert len(attempts) == 3


def test_how_long_a_line_waits_for_another_attempt() -> None:
    paused = InternalAnswer(503, b"", "", 86_400.0)
    assert [_wait("paused", paused, seconds) for seconds in (0.25, 4, 30)] == [0.25, 4, 5]
    assert _wait("model_unloaded", InternalAnswer(503, b"", "", 30.0), 0.25) == 30
    assert _wait("rate_limit_exceeded", InternalAnswer(429, b"", "", None), 8.0) == 8


async def test_files_of_results_are_files_with_their_own_expiry(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder, says([300])) as gateway:
        batch = await create(
            gateway,
            jsonl([line("a")]),
            output_expires_after={"anchor": "created_at", "seconds": 7200},
        )
        batch = await until_status(gateway, batch, "completed")
        assert batch.output_file_id is not None
        file = await gateway.openai.files.retrieve(batch.output_file_id)
        assert batch.error_file_id is None
    assert file.purpose == "batch_output"
    assert file.filename == f"{batch.id}_output.jsonl"
    assert file.expires_at == file.created_at + 7200


async def test_a_disk_that_is_full_at_the_end_loses_no_answer(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of errors is the one that finds no room: that of answers is written by then."""
    kept, attempts = Draft.commit, count()

    def full(self: Draft, name: str) -> None:
        if next(attempts) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        kept(self, name)

    monkeypatch.setattr("gatewayd.store.retry._SECONDS", 0.01)
    async with serving(text, folder, says([300])) as gateway:
        file = await gateway.openai.files.create(
            file=("f", jsonl([line("a"), line("b", model="nobody")])), purpose="batch"
        )
        monkeypatch.setattr(Draft, "commit", full)
        batch = await gateway.openai.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        batch = await until_status(gateway, batch, "completed")
        assert [one["custom_id"] for one in await results(gateway, batch.output_file_id)] == ["a"]
        assert [one["custom_id"] for one in await results(gateway, batch.error_file_id)] == ["b"]
    assert next(attempts) == 4
    assert len(list((folder / "files").iterdir())) == 3


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"endpoint": "/v1/images"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"input_file_id": "file-nobody"}, 404, "input_file_id"),
        ({"metadata": {"k": 1}}, 400, "metadata.k"),
        ({"metadata": {str(n): "v" for n in range(17)}}, 400, "metadata"),
    ],
)
async def test_a_wrong_batch_is_refused_at_once(
    text: TextModel, folder: Path, fields: dict[str, Any], status: int, param: str
) -> None:
    async with serving(text, folder, says([300])) as gateway:
        file = await gateway.openai.files.create(file=("f", jsonl([line("a")])), purpose="batch")
        body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **fields}
        answer = await gateway.http.post("/v1/batches", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
        other = await gateway.openai.files.create(file=("f", b"x"), purpose="user_data")
        answer = await gateway.http.post("/v1/batches", json={**body, "input_file_id": other.id})
        assert answer.status_code == 400
        assert (await gateway.openai.batches.list()).data == []


async def test_lists_are_paged(text: TextModel, folder: Path) -> None:
    async with serving(text, folder, hangs) as gateway:
        made = [await create(gateway, jsonl([line("a")])) for _ in range(5)]
        listed = [one.id async for one in gateway.openai.batches.list(limit=2)]
        assert listed == [one.id for one in made[::-1]]
        with pytest.raises(openai.NotFoundError):
            await gateway.openai.batches.retrieve("batch_nobody")


async def test_no_more_lines_run_at_once_than_is_configured(text: TextModel, folder: Path) -> None:
    now, most, finished = 0, 0, says([300], delay=0.01)

    async def script(job: Job) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await finished(job)
        now -= 1

    async with serving(text, folder, script, concurrency=3) as gateway:
        made = [await create(gateway, jsonl([line(str(n)) for n in range(10)])) for _ in range(3)]
        for one in made:
            await until_status(gateway, one, "completed")
    assert most == 3


async def test_a_line_that_finds_no_room_waits_for_it(text: TextModel, folder: Path) -> None:
    async with serving(text, folder, says([300])) as gateway:
        gateway.fleet.refusal = QueueFull("no room")
        batch = await create(gateway, jsonl([line(str(n)) for n in range(3)]))
        await until_status(gateway, batch, "in_progress")
        await asyncio.sleep(0.3)
        gateway.fleet.refusal = None
        batch = await until_status(gateway, batch, "completed")
    assert batch.request_counts is not None
    assert batch.request_counts.completed == 3


async def test_a_line_that_loses_every_engine_fails_in_the_end(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatewayd.resources.batches.congestion_window._FIRST_SECONDS", 0.01)
    async with serving(text, folder, fails(EngineLost("the engine died"))) as gateway:
        batch = await create(gateway, jsonl([line("a")]))
        batch = await until_status(gateway, batch, "completed")
        (failed,) = await results(gateway, batch.error_file_id)
        assert len(gateway.fleet.jobs) == 3
    assert failed["response"]["body"]["error"]["code"] == "engine_restarted"


async def test_a_line_that_an_operator_cancels_is_not_run_again(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder, fails(RequestCancelled("an operator did"))) as gateway:
        batch = await create(gateway, jsonl([line("a")]))
        batch = await until_status(gateway, batch, "completed")
        (failed,) = await results(gateway, batch.error_file_id)
        assert len(gateway.fleet.jobs) == 1
    assert failed["response"]["body"]["error"]["code"] == "cancelled"


async def test_a_cancelled_batch_ends_at_once_with_what_it_has(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder, every_other_hangs()) as gateway:
        batch = await create(gateway, jsonl([line(str(n)) for n in range(10)]))
        async with asyncio.timeout(30):
            while True:
                found = await gateway.openai.batches.retrieve(batch.id)
                if found.request_counts and found.request_counts.completed == 5:
                    break
                await asyncio.sleep(0.01)
        assert (await gateway.openai.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        batch = await until_status(gateway, batch, "cancelled")
        answered = await results(gateway, batch.output_file_id)
        assert all(job.gone.is_set() for job in gateway.fleet.jobs if not job.task.done())  # type: ignore[union-attr]
        with pytest.raises(openai.ConflictError, match="is cancelled"):
            await gateway.openai.batches.cancel(batch.id)
    assert len(answered) == 5
    assert batch.cancelling_at is not None
    assert batch.cancelled_at is not None
    assert batch.error_file_id is None


async def test_what_was_not_run_in_time_is_said_line_by_line(text: TextModel, folder: Path) -> None:
    async with serving(text, folder, hangs, window=1, concurrency=2) as gateway:
        batch = await create(gateway, jsonl([line(str(n)) for n in range(5)]))
        batch = await until_status(gateway, batch, "expired")
        failed = await results(gateway, batch.error_file_id)
    assert [one["custom_id"] for one in failed] == [str(n) for n in range(5)]
    assert {one["error"]["code"] for one in failed} == {"batch_expired"}
    assert all(one["response"] is None for one in failed)
    assert batch.expired_at is not None
    assert batch.output_file_id is None


async def test_a_batch_goes_on_after_a_stop_and_answers_no_line_twice(
    text: TextModel, folder: Path
) -> None:
    """Each life ends as soon as it has answered a few lines, with others under way."""
    slowly = says([300], delay=0.1)
    async with serving(text, folder, slowly, concurrency=4) as gateway:
        batch = await create(gateway, jsonl([line(str(n)) for n in range(40)]))
    lives, answered = 0, 0
    while batch.output_file_id is None:
        lives, answered_before = lives + 1, answered
        async with serving(text, folder, slowly, concurrency=4) as gateway, asyncio.timeout(30):
            while batch.output_file_id is None and answered < answered_before + 4:
                await asyncio.sleep(0.01)
                batch = await gateway.openai.batches.retrieve(batch.id)
                answered = batch.request_counts.completed if batch.request_counts else 0
            if batch.output_file_id is not None:
                lines = await results(gateway, batch.output_file_id)
    assert lives > 2
    assert [one["custom_id"] for one in lines] == [str(n) for n in range(40)]
    assert answered == 40


async def test_results_are_deleted_a_few_at_a_time_and_by_the_next_start(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in files by then; who else writes does not wait for all of them."""
    monkeypatch.setattr(records, "_FORGOTTEN_AT_ONCE", 7)
    pieces, forget, num_lines = list[int](), records.delete_some_results, 40

    def counted(connection: Connection, batch_id: str) -> bool:
        before = len(list(records.outputs(connection, batch_id, is_ok=True)))
        if dies and len(pieces) == 3:
            raise asyncio.CancelledError  # as if the process ended
        more = forget(connection, batch_id)
        pieces.append(before - len(list(records.outputs(connection, batch_id, is_ok=True))))
        return more

    monkeypatch.setattr(records, "delete_some_results", counted)
    dies = True
    async with serving(text, folder, says([300])) as gateway:
        batch = await create(gateway, jsonl([line(str(n)) for n in range(num_lines)]))
        batch = await until_status(gateway, batch, "completed")
        await until(lambda: len(pieces) == 3)
        assert len(await results(gateway, batch.output_file_id)) == num_lines
    dies = False
    async with serving(text, folder, says([300])) as gateway:
        await until(lambda: sum(pieces) == num_lines)
        assert max(pieces) == 7
        assert len(await results(gateway, batch.output_file_id)) == num_lines


# The states themselves

STATES = [*NEXT, *OVER]


VALUES = {
    "created_at": 1,
    "expires_at": 2,
    "endpoint": CHAT,
    "input_file_id": "file-x",
    "completion_window": "24h",
}


@pytest.mark.parametrize("first", STATES)
async def test_no_state_follows_but_those_that_may(folder: Path, first: str) -> None:
    now = time.time()

    def attempt(connection: Connection, second: str) -> str:
        batch_id = records.add(connection, {"id": new_id("batch_"), **VALUES}).id
        for state in _way(first):
            records.set_status(connection, batch_id, state, now)
        try:
            row = records.set_status(connection, batch_id, second, now)
        except Conflict:
            return first
        assert getattr(row, f"{second}_at") == int(now)
        return str(row.status)

    with opened(folder) as durable:
        for second in STATES:
            status = await durable.database.write(partial(attempt, second=second))
            assert status == (second if second in NEXT.get(first, ()) else first)


def _way(state: str) -> list[str]:
    """The shortest way from ``validating``."""
    ways = {"validating": list[str]()}
    while state not in ways:
        for before, way in list(ways.items()):
            for after in NEXT.get(before, ()):
                ways.setdefault(after, [*way, after])
    return ways[state]


async def test_of_two_results_of_a_line_the_first_counts(folder: Path) -> None:
    with opened(folder) as durable:
        batch_id = new_id("batch_")
        values = {"id": batch_id, **VALUES}
        await durable.database.write(lambda connection: records.add(connection, values))
        both = [LineResult(batch_id, 1, True, b"first"), LineResult(batch_id, 1, False, b"second")]
        ends = await asyncio.gather(
            *[durable.database.write(partial(records.record, result=one)) for one in both]
        )
        row = await durable.database.read(lambda connection: records.find(connection, batch_id))
        outputs = await durable.database.read(
            lambda connection: list(records.outputs(connection, batch_id, is_ok=True))
        )
    assert ends == [True, False]
    assert (row.completed, row.failed) == (1, 0)
    assert outputs == [b"first"]
