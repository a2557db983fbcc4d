"""Pulls of the daemon: processes that fail, end, or are too many."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from gatewayd.daemon import model_fetch
from gatewayd.daemon.model_fetch import draw
from gatewayd.hub import errors
from gatewayd.hub.errors import HubError
from gatewayd.hub.pull_events import PullEvent, encode_line
from gatewayd.hub.pull_process import ModelPulls, pull_environment
from gatewayd.hub.reference import HubReference, parse_reference
from tests.gatewayd.gateway import until

ONE = parse_reference("org/one")


def script(code: str) -> ModelPulls:
    """Pulls that are a Python script instead."""
    return ModelPulls((sys.executable, "-c", code))


async def events(pulls: ModelPulls, reference: HubReference = ONE) -> list[PullEvent]:
    return [event async for event in pulls.pull(reference)]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        ("print('{}'); print('no JSON')", "ended with status 0"),
        ("print('x' * 1_000_000)", "the pull failed"),
        ("import os; os.kill(os.getpid(), 9)", "ended with status -9"),
    ],
)
async def test_a_process_that_ends_without_a_word_has_failed(code: str, words: str) -> None:
    with pytest.raises(HubError, match=words) as caught:
        await events(script(code))
    assert caught.value.code == errors.UNREACHABLE


async def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(HubError, match="cannot start a pull"):
        await events(ModelPulls(("/nowhere/program",)))


async def test_a_slow_reader_gets_the_latest_of_each_file() -> None:
    lines = [PullEvent("listing")]
    lines += [PullEvent("fetching", name, "d", 9, at) for name in "ab" for at in range(10)]
    lines += [PullEvent("done")]
    text = "\n".join(map(encode_line, lines))
    pulls = script(f"print({text!r})")
    following = pulls.pull(ONE)
    found = [await anext(following)]
    while pulls.repos:
        await asyncio.sleep(0.01)
    found += [event async for event in following]
    assert len(found) <= 5
    assert [event.completed for event in found if event.file][-2:] == [9, 9]
    assert found[-1].stage == "done"


async def test_events_come_in_the_order_of_their_changes() -> None:
    lines = [PullEvent("fetching", name, "d", 9, at) for at, name in enumerate("abcaba")]
    text = "\n".join(map(encode_line, [*lines, PullEvent("done")]))
    pulls = script(f"print({text!r})")
    following = pulls.pull(ONE)
    found = [await anext(following)]
    while pulls.repos:
        await asyncio.sleep(0.01)
    found += [event async for event in following]
    assert [event.file for event in found][-4:] == ["c", "b", "a", ""]


async def test_a_start_is_extended_only_while_there_is_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(model_fetch, "notify", told.append)
    monkeypatch.setattr(model_fetch, "_NOTIFY_SECONDS", 0.01)
    monkeypatch.setattr(model_fetch, "_SILENT_SECONDS", 0.2)
    lines = [encode_line(PullEvent("fetching", "a", "d", 9, at)) for at in (1, *[2] * 30)]
    code = f"import time\nfor one in {lines!r}: print(one, flush=True); time.sleep(0.1)"
    monkeypatch.setattr(model_fetch, "ModelPulls", lambda: script(f"{code}\ntime.sleep(60)"))
    fetching = asyncio.create_task(model_fetch._fetch(ONE))
    await until(lambda: bool(told))
    await asyncio.sleep(1.2)
    num_told = len(told)
    await asyncio.sleep(0.2)
    assert len(told) == num_told
    assert told[0].startswith("EXTEND_TIMEOUT_USEC=60000000\n")
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)


async def test_a_pull_that_is_ending_is_not_joined() -> None:
    line = encode_line(PullEvent("fetching", "PID"))
    pulls = script(
        f"import os, time; print({line!r}.replace('PID', str(os.getpid())), flush=True);"
        " time.sleep(60)"
    )
    first, second = pulls.pull(ONE), pulls.pull(ONE)
    ending = await anext(first)
    await first.aclose()
    assert (await anext(second)).file != ending.file
    await pulls.close()
    assert not pulls.repos


async def test_four_pulls_are_the_limit() -> None:
    pulls = script(
        f"import time; print({encode_line(PullEvent('listing'))!r}, flush=True); time.sleep(60)"
    )
    following = [pulls.pull(HubReference(f"org/{at}")) for at in range(5)]
    for one in following[:4]:
        await anext(one)
    with pytest.raises(HubError, match="which is the limit") as caught:
        await anext(following[4])
    assert caught.value.code == errors.BUSY
    await pulls.close()
    with pytest.raises(HubError, match="was stopped"):
        await anext(following[0])


@pytest.mark.parametrize(("content", "is_passed"), [("hf_secret\n", True), ("\n", False)])
def test_the_token_is_a_credential_of_the_service(
    content: str, is_passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hf-token"
    file.write_text(content)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN_PATH", raising=False)
    environment = pull_environment()
    assert environment.get("HF_TOKEN_PATH") == (str(file) if is_passed else None)
    assert "CREDENTIALS_DIRECTORY" not in environment


async def test_progress_is_drawn_file_by_file() -> None:
    async def some() -> AsyncIterator[PullEvent]:
        yield PullEvent("listing")
        for name in ("config", "weights"):
            yield PullEvent("fetching", name, "d", 9, 4)
            await asyncio.sleep(0.25)  # two frames
        yield PullEvent("done")

    drawn = io.StringIO()
    await draw(some(), Console(file=drawn, force_terminal=True, width=100))
    for text in ("fetching config", "fetching weights", "4/9 bytes"):
        assert text in drawn.getvalue()
