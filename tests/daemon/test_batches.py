"""Batches: survive kills of daemon and engine on one store.

What must hold at the end: the output has every custom_id once, in order, with the answer that an
undisturbed daemon gives. ``pytest -m slow tests/daemon/test_batches.py -s`` kills twenty times.
"""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest

CHAT: Final = "/v1/chat/completions"


def line(number: int) -> dict[str, Any]:
    body = {
        "model": "nano",
        "messages": [{"role": "user", "content": f"number {number}"}],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
    }
    return {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}


def create(url: str, num_lines: int) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        content = b"".join(json.dumps(line(n)).encode() + b"\n" for n in range(num_lines))
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        return client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        ).id


def look(url: str, batch_id: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/v1/batches/{batch_id}", timeout=60).json()
    return found


def campaign(start_daemon: Any, store: Path, num_lines: int, kills: int, seed: int) -> None:
    rng, settings = random.Random(seed), {"store.path": store, "batches.concurrency": 8}
    env = {"FAKE_STEP_MS": "2", "FAKE_MAX_RUNNING": "8"}
    daemon = start_daemon(env=env, **settings)
    batch_id = create(daemon.url, num_lines)
    progress, lives = [], 1
    for kill in range(kills):
        done = look(daemon.url, batch_id)["request_counts"]["completed"]
        progress.append(done)
        goal = min(done + num_lines // (kills + 1), num_lines - 1)
        deadline = time.monotonic() + 60
        while look(daemon.url, batch_id)["request_counts"]["completed"] < goal:
            assert time.monotonic() < deadline, look(daemon.url, batch_id)
            time.sleep(rng.uniform(0, 0.02))
        if kill % 2:
            daemon.kill_engine()
            continue
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        daemon, lives = start_daemon(env=env, wait=False, **settings), lives + 1
        daemon.wait_listening()
    deadline = time.monotonic() + 120
    while (batch := look(daemon.url, batch_id))["status"] != "completed":
        assert batch["status"] in ("validating", "in_progress", "finalizing"), batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
    assert progress == sorted(progress)
    assert lives > 1
    assert batch["request_counts"] == {"total": num_lines, "completed": num_lines, "failed": 0}
    assert batch["error_file_id"] is None
    content = httpx.get(f"{daemon.url}/v1/files/{batch['output_file_id']}/content").text
    results = [json.loads(one) for one in content.splitlines()]
    assert [one["custom_id"] for one in results] == [f"line-{n}" for n in range(num_lines)]
    assert len({one["id"] for one in results}) == num_lines
    for number in rng.sample(range(num_lines), 10):
        answer = httpx.post(f"{daemon.url}{CHAT}", json=line(number)["body"]).json()
        told = results[number]["response"]["body"]
        assert told["choices"] == answer["choices"]
    # Nothing is left of contents that a killed process had begun.
    assert len(list((store / "files").iterdir())) == 2
    assert daemon.stop() == 0


def test_a_batch_survives_kills_of_daemon_and_engine(start_daemon: Any, tmp_path: Path) -> None:
    campaign(start_daemon, tmp_path / "store", num_lines=120, kills=4, seed=1)


@pytest.mark.slow
def test_a_batch_survives_twenty_kills(start_daemon: Any, tmp_path: Path) -> None:
    campaign(start_daemon, tmp_path / "store", num_lines=2000, kills=20, seed=2)


def test_a_daemon_that_stops_does_not_wait_for_its_batches(
    start_daemon: Any, tmp_path: Path
) -> None:
    env, settings = (
        {"FAKE_STEP_MS": "1000", "FAKE_MAX_RUNNING": "1"},
        {"store.path": tmp_path / "store"},
    )
    daemon = start_daemon(env=env, **settings)
    batch_id = create(daemon.url, 10)
    while look(daemon.url, batch_id)["status"] != "in_progress":
        time.sleep(0.01)
    began = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - began < 15
    daemon = start_daemon(**settings)
    while look(daemon.url, batch_id)["status"] != "completed":
        time.sleep(0.02)


def test_a_store_in_use_or_damaged_ends_the_start_with_one_sentence(
    start_daemon: Any, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    start_daemon(**{"store.path": store})
    second = start_daemon(wait=False, **{"store.path": store})
    assert second.process.wait(30) == 1
    assert second.said(f"the store {store} is in use by another process (pid ")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "gatewayd.db").write_bytes(b"no database at all" * 300)
    third = start_daemon(wait=False, **{"store.path": damaged})
    assert third.process.wait(30) == 1
    assert third.said("its file is no SQLite database, or is damaged")
