"""``gatewayd quantize``: a real writing process, its progress and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.offline.quantize.job import REPORT
from tests.engine.core.small_model import small

COMMAND = [sys.executable, "-m", "gatewayd", "quantize"]


def run(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, timeout=120, cwd=cwd
    )


def test_a_checkpoint_is_written_and_told_of(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("def add(a, b):\n    return a + b\n" * 60)
    options = ("--to", "gptq", "--text", str(text), "--tokens", "500", "--set", "group_size=64")
    done = run(str(small()), *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / f"{small().name}-gptq"
    assert done.stdout.startswith(f"{out.name}: 14 matrices by gptq, ")
    assert f"gatewayd quality {out.name} --against {small()}" in done.stdout
    lines = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["layer 1 of 2", "layer 2 of 2"]
    assert "relative output error" in lines[0]
    announced = json.loads((out / "config.json").read_text())["quantization_config"]
    assert (announced["quant_method"], announced["group_size"]) == ("gptq", 64)
    assert json.loads((out / REPORT).read_text())["texts"] == {"sequences": 1, "tokens": 500}
    again = run(str(small()), *options, cwd=tmp_path)
    assert again.returncode == 1
    assert f"{out} exists; give another --out, or --force" in again.stderr


def test_the_configuration_names_what_stays_too(tmp_path: Path) -> None:
    (tmp_path / "gatewayd.toml").write_text('[quantizer]\nskip = ["lm_head", "*.down_proj"]\n')
    options = (str(small()), "--to", "fp8", "--config", "gatewayd.toml")
    done = run(*options, cwd=tmp_path)
    assert "12 matrices by fp8" in done.stdout, done.stderr
    done = run(*options, "--skip", "*.0.*.o_proj", "--force", cwd=tmp_path)
    assert "13 matrices by fp8" in done.stdout, done.stderr


def test_other_models_on_the_bundled_texts_are_told_of(tmp_path: Path) -> None:
    """And neither the model that they are of, nor a quantizer that looks at no text."""
    said = "calibrating on the bundled texts"
    done = run(str(small()), "--to", "awq", "--tokens", "100", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(said)
    assert "--text" in done.stderr.splitlines()[0]
    # So few tokens say nothing.
    assert done.stderr.count("; 7 matrices saw too few tokens and were rounded to nearest\n") == 2
    assert said not in run(str(small()), "--to", "fp8", cwd=tmp_path).stderr


def test_programs_get_all_numbers(tmp_path: Path) -> None:
    done = run(str(small()), "--to", "fp8", "--out", "x/y", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout)
    assert values["folder"] == "x/y"
    assert values["weight_bytes"] < values["source_bytes"]
    assert len(values["matrices"]) == 14
    assert values["matrices"][0].keys() == {"matrix", "lost", "nearest", "few"}


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (("/nowhere", "--to", "awq"), 1, "cannot read /nowhere/config.json"),
        (("nano",), 2, "Missing option '--to'"),
        (("nano", "--to", "nope"), 1, "quantizer.nope is not installed"),
        (("nano", "--to", "awq", "--set", "group_size"), 2, "is not KEY=VALUE"),
        (("nano", "--to", "awq", "--set", "group_size=7"), 1, "group_size"),
        (("nano", "--to", "awq", "--text", "/nowhere.txt"), 1, "--text: cannot read /nowhere.txt"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    options: tuple[str, ...], status: int, sentence: str, tmp_path: Path
) -> None:
    done = run(*options, cwd=tmp_path)
    assert done.returncode == status
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_who_interrupts_it_is_told_how_to_go_on(tmp_path: Path) -> None:
    options = ("nano", "--to", "awq", "--out", "out", "--tokens", "4000")
    with subprocess.Popen(
        [*COMMAND, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    ) as child:
        while not (tmp_path / "out.part" / "state.json").exists():
            time.sleep(0.02)
        # As a terminal does: to all processes of the group.
        os.killpg(child.pid, signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    there = f"what is done stays in {tmp_path / 'out.part'}, and --resume continues it"
    assert f"interrupted; {there}" in said
    assert "Traceback" not in said
    done = run("nano", "--to", "awq", "--out", "out", "--tokens", "4000", cwd=tmp_path)
    assert "holds 0 layers of an earlier run; --resume continues" in done.stderr
