"""Pending lines: equal a split of the whole file; no slot is lost in turns."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd.resources.batches import lines, pending_lines
from gatewayd.resources.batches.line_scheduler import LineSchedulers, Permit
from gatewayd.resources.batches.line_set import LineSet
from gatewayd.resources.batches.lines import Position, all_lines, some_lines
from gatewayd.resources.batches.pending_lines import PendingLines
from tests.gatewayd.batch_gateway import CHAT, line


def written(rng: random.Random, path: Path, num_lines: int) -> dict[int, str]:
    """An input with empty lines between; its custom_ids by number."""
    made, texts = dict[int, str](), list[bytes]()
    for number in range(1, num_lines + 1):
        if rng.random() < 0.3:
            texts.append(rng.choice([b"\n", b"\r\n", b"   \n"]))
            continue
        made[number] = f"id-{number}"
        content = "x" * rng.choice([1, 10, 3000])
        texts.append(json.dumps(line(made[number], content)).encode() + b"\n")
    if rng.random() < 0.5 and texts and texts[-1].strip():
        texts[-1] = texts[-1].rstrip(b"\n")
    path.write_bytes(b"".join(texts) + b"")
    return made


@given(st.integers(0, 2**32))
def test_each_line_is_given_out_until_it_has_a_result_and_never_twice(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    path = tmp_path_factory.mktemp("inputs") / "in.jsonl"
    made = written(rng, path, rng.randrange(1, 150))
    done = {number for number in made if rng.random() < 0.3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_BYTES_AT_ONCE", 2000)
        patch.setattr(lines, "_SCANNED_LINES", 7)
        patch.setattr(pending_lines, "_MOST_REFUSED", 3)
        assert {one.number: one.custom_id for one in all_lines(path, CHAT, len(made), done)} == {
            number: custom_id for number, custom_id in made.items() if number not in done
        }
        asyncio.run(_sent(rng, path, made, done))


async def _sent(rng: random.Random, path: Path, made: dict[int, str], done: set[int]) -> None:
    now = 0.0
    given_out = PendingLines(path, CHAT, total=len(made), done=LineSet(done), clock=lambda: now)
    answered, losses = list[int](), dict[int, int]()
    while await given_out.has_more():
        todo = await given_out.next()
        if todo is None:
            continue
        assert todo.line.custom_id == made[todo.line.number]
        assert b'"priority":"batch"' in todo.line.body
        assert todo.losses == losses.get(todo.line.number, 0)
        if rng.random() < 0.4:
            is_lost = rng.random() < 0.3
            losses[todo.line.number] = todo.losses + is_lost
            given_out.refused(todo, rng.random(), is_lost=is_lost)
        else:
            answered.append(todo.line.number)
            given_out.ended()
        now += rng.random()
    assert sorted(answered) == sorted(made.keys() - done)
    assert len(answered) == len(set(answered))


def test_little_is_read_ahead_and_a_long_line_comes_alone(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    sizes = [10, 10, 100_000, 10, 300_000, 10, *[30_000] * 6]
    texts = [json.dumps(line(str(n), "x" * size)).encode() + b"\n" for n, size in enumerate(sizes)]
    path.write_bytes(b"".join(texts))
    at: Position | None = Position()
    found = list[list[int]]()
    while at is not None:
        some, at = some_lines(path, CHAT, at, total=len(sizes), without=())
        found.append([one.number for one in some])
    assert found == [[1, 2], [3], [4], [5], [6, 7, 8], [9, 10], [11, 12]]


def test_nothing_is_read_behind_the_last_request(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    one = json.dumps(line("a")).encode() + b"\n"
    path.write_bytes(one + b"not read\n")
    found, at = some_lines(path, CHAT, Position(), total=1, without=())
    assert ([each.custom_id for each in found], at) == (["a"], None)


@given(st.sets(st.integers(0, 5000)))
def test_a_set_of_lines_is_a_set(numbers: set[int]) -> None:
    found = LineSet(numbers)
    assert {number for number in range(6000) if number in found} == numbers


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_no_slot_is_lost_or_given_twice_whoever_is_refused_or_leaves(
    seed: int, num_slots: int
) -> None:
    asyncio.run(_turns(random.Random(seed), num_slots))


async def _turns(rng: random.Random, num_slots: int) -> None:
    now = 0.0
    schedulers = LineSchedulers(lambda: num_slots, clock=lambda: now)
    held: list[Permit] = []
    tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(tenant: str, batch_id: str) -> None:
        held.append(await schedulers.of(tenant).acquire(batch_id))

    for _ in range(80):
        match rng.randrange(6):
            case 0 | 1 | 2:
                batch_id = rng.choice(["a1", "a2", "b1", "c1"])
                if batch_id not in tasks or tasks[batch_id].done():
                    tasks[batch_id] = asyncio.create_task(ask(batch_id[0], batch_id))
            case 3 if held:
                permit = held.pop(rng.randrange(len(held)))
                permit.answered()
                permit.close()
                permit.close()
            case 4 if held:
                held.pop(rng.randrange(len(held))).refused(rng.random())
            case _ if tasks:
                rng.choice(list(tasks.values())).cancel()
        now += rng.random()
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        assert schedulers.slots.num_running <= num_slots
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    await asyncio.sleep(0)
    assert schedulers.slots.num_running == len(held)
    for permit in held:
        permit.close()
    # Whatever was refused, everybody has a turn again.
    now += 1000

    async def turn_of(tenant: str) -> None:
        (await schedulers.of(tenant).acquire(tenant)).close()

    await asyncio.wait_for(asyncio.gather(*map(turn_of, "abc")), 30)
    assert schedulers.slots.num_running == 0
    await schedulers.stop()
