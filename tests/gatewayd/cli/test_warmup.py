"""``gatewayd warmup`` with a real engine process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gatewayd", "warmup", *options],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_it_starts_an_engine_and_says_what_took_how_long() -> None:
    document: dict[str, Any] = json.loads(run("--device", "cpu", "--json").stdout)
    assert set(document["stages"]) == {"loading weights"}
    assert 0 < document["stages"]["loading weights"] < document["ready_seconds"]
    # Nothing is compiled on a CPU.
    assert document["caches"] == {}
    table = run("--device", "cpu")
    assert table.returncode == 0
    assert "until ready" in table.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--device", "cuda:63"), "device is 'cuda:63', but torch"),
        (("--device", "tpu"), "engine.device"),
        (("--model", "/nowhere"), "/nowhere"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(options: tuple[str, ...], sentence: str) -> None:
    done = run(*options)
    assert done.returncode in (1, 78)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
