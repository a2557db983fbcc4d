"""``gatewayd warmup``: with a real engine process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gatewayd.cli.warmup import command
from gatewayd_engine.tuning.table import TunedMachine, TuningTable, case


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
    assert document["choices"] is None
    table = run("--device", "cpu")
    assert table.returncode == 0
    assert "until ready" in table.stdout


def test_every_model_of_a_catalogue_is_warmed_up(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    tables = '[models.a]\npath = "embedded:nano"\n[models.b]\npath = "embedded:nano-draft"\n'
    file.write_text(tables)
    document = json.loads(run("--device", "cpu", "--json", "--config", str(file)).stdout)
    assert [model["model"] for model in document["models"]] == ["a", "b"]
    assert all(model["ready_seconds"] > 0 for model in document["models"])
    file.write_text(tables.replace("embedded:nano-draft", "/no/such"))
    done = run("--device", "cpu", "--config", str(file))
    assert done.returncode == 1
    assert "[models.b]: " in done.stderr
    # That of the command line alone.
    done = run("--device", "cpu", "--config", str(file), "--model", "embedded:nano")
    assert done.returncode == 0


def test_it_shows_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = TuningTable(TunedMachine("a chip", "9.0", {}), tmp_path)
    times = {"torch": 10.0, "tinygemm2": 8.0}
    which = case("matmul", "bfloat16", m=8, n=48, k=64)
    table.chosen(which, list(times), times.__getitem__, lambda name: None)

    async def started(*args: object) -> tuple[dict[str, float], float, str]:
        return {"loading weights": 1.0}, 2.0, str(table.path)

    monkeypatch.setattr(command, "_start_and_end", started)
    command.warmup(device="cpu", as_json=True)
    document = json.loads(capsys.readouterr().out)["choices"]
    assert document["file"] == str(table.path)
    assert document["entries"][0]["choice"] == "tinygemm2"
    assert document["entries"][0]["microseconds"] == times
    command.warmup(device="cpu")
    shown = capsys.readouterr().out
    assert "tinygemm2  8.0 µs" in shown
    assert str(table.path) in shown


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
