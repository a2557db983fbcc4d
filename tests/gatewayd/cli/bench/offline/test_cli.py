"""``gatewayd bench offline``: as typed, on the embedded model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatewayd.cli.bench.app import app
from gatewayd.cli.bench.h200 import compare, reference
from gatewayd.cli.bench.run import BenchRun
from gatewayd.cli.bench.tables import TableRows
from gatewayd.cli.bench.target import subject


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gatewayd", "bench", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_document_adds_up(tmp_path: Path) -> None:
    file = tmp_path / "offline.json"
    done = run(
        *("offline", "--scale", "0.1", "--only", "shared,decode-32,prefill"),
        *("--max-running", "16", "--json", "--out", file),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert json.loads(file.read_text()) == document
    assert (document["model"], document["dtype"], document["scale"]) == ("nano", "float32", 0.1)
    assert document["settings"]["engine.max_running"] == 16
    assert document["machine"]["gpu"] == ""
    counts = {}
    for one in document["workloads"]:
        counts[one["workload"]] = (one["requests"], one["input_tokens"], one["output_tokens"])
        seconds = one["seconds"]
        assert one["output_tokens_per_second"] == pytest.approx(one["output_tokens"] / seconds)
        assert one["input_tokens_per_second"] == pytest.approx(one["input_tokens"] / seconds)
        assert one["requests_per_second"] == pytest.approx(one["requests"] / seconds)
        # All that was computed is what came in and out, but for what was cached.
        computed = one["input_tokens"] + one["output_tokens"] - one["requests"]
        assert one["steps"] * one["step_tokens"] == pytest.approx(computed - one["cached_tokens"])
        assert one["steps"] * one["step_ms"] < 1000 * seconds
        assert 1 <= one["step_sequences"] <= 16
        assert one["cpu_us"] > 0
    # The order is that of the workloads, not of the option.
    assert list(counts.items()) == [
        ("decode_bs32_in128_out256", (3, 39, 78)),
        ("prefill_64x4096_out1", (6, 2460, 6)),
        ("sharedprefix_1000x(1000+50)_out32", (100, 10_500, 300)),
    ]
    cached = [one["cached_tokens"] for one in document["workloads"]]
    assert cached[:2] == [0, 0]  # the round before has other prompts
    # Of the 100 that are shared the full pages, and all once one has ended that left the last.
    assert 99 * 96 < cached[2] <= 99 * 100
    assert len(document["differences"]) == 4
    for one in document["comparisons"]:
        measured = {w["workload"]: w for w in document["workloads"]}[one["workload"]]
        assert one["measured"] == measured[one["figure"]]
        assert one["times_reference"] == pytest.approx(one["measured"] / one["reference"])
        assert one["kept"] is None


def test_a_table_says_that_it_is_no_verdict() -> None:
    done = run("offline", "--scale", "0.01", "--only", "decode-1")
    assert done.returncode == 0, done.stderr
    assert "decode_bs1_in128_out256" in done.stdout
    assert "vLLM 0.25.1, H200" in done.stdout
    assert "This run is no verdict on the goals: the machine is one without a GPU" in done.stdout
    assert "kept" not in done.stdout
    assert "missed" not in done.stdout
    assert done.stderr.startswith("decode_bs1_in128_out256: output tok/s ")


def test_the_engine_is_started_once_more_to_say_how_long_it_takes() -> None:
    done = run("offline", "--only", "start", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (one,) = document["workloads"]
    assert one["workload"] == "start"
    assert 0.1 < one["warm_start_seconds"] < 60
    (compared,) = document["comparisons"]
    assert compared["measured"] == one["warm_start_seconds"]
    assert (compared["reference"], compared["times_reference"], compared["kept"]) == (None,) * 3


def test_rows_can_be_copied_into_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    known = reference().offline["decode_bs1_in128_out256"]
    with subject(None, "cpu", {"model.dtype": "auto"}) as found:
        run_ = BenchRun(found, "cpu", "float32", 1.0)
    run_.comparisons += compare("w", known, {"output_tokens_per_second": 402.0})
    run_.show("markdown", "offline", TableRows(["a", "b"], [["1", "2"]]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| workload | figure | ours | vLLM 0.25.1, H200 |")
    assert lines[2] == "| w | output tok/s | 402 | 201 | 2.00 | ≥ 235 |  |  | - |"
    assert lines[4:7] == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]
    assert "no verdict" in lines[-1]


@pytest.mark.parametrize("command", ["offline", "serve"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "decode-2"), ("--only", "'decode-2' is not a workload")),
        (("--model", "/nowhere"), ("--model", "'/nowhere' is neither llama-8b nor")),
        (("--device", "tpu"), ("--device", "'tpu'")),
        (("--kv-memory", "much"), ("--kv-memory", "'much'")),
        (("--scale", "2"), ("--scale", "equal to 1")),
    ],
)
def test_bad_options_name_themselves(
    command: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = CliRunner().invoke(app, [command, *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    for word in words:
        assert word in done.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--kv-codec", "int3"), "kv_codec.int3 is not installed"),
        (("--set", "kv_codec.fp8.scale"), "'kv_codec.fp8.scale' is not KEY=VALUE"),
        (("--quantizer", "int3"), "quantizer.int3 is not installed"),
    ],
)
def test_forms_that_are_not_installed_are_refused_before_an_engine_starts(
    arguments: tuple[str, str], sentence: str
) -> None:
    done = CliRunner().invoke(app, ["offline", *arguments], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert arguments[0] in done.output
    assert sentence in done.output


def test_weights_and_keys_of_fewer_bits_are_measured() -> None:
    done = run(
        *("offline", "--only", "decode-1", "--scale", "0.02", "--json"),
        *("--quantizer", "int8", "--kv-codec", "int4"),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["settings"]["quantizer.strategy"] == "int8"
    assert document["settings"]["kv_codec.strategy"] == "int4"
    assert document["differences"][-2:] == [
        "weights quantized by int8",
        "KV cache quantized by int4",
    ]
    assert document["workloads"][0]["output_tokens"] == 5


def test_options_of_the_plain_command_do_not_get_lost_in_front_of_another() -> None:
    done = CliRunner().invoke(app, ["--concurrency", "4", "offline"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "--concurrency" in done.output
    assert "offline does not accept it" in done.output


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--max-model-len", "100000"), "100000"),
        (("--quantizer", "gguf"), "[quantizer] strategy is gguf, which reads quantized"),
    ],
)
def test_what_the_engine_refuses_is_one_sentence(arguments: tuple[str, str], word: str) -> None:
    done = run("offline", "--only", "decode-1", *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("gatewayd: ")
    assert word in done.stderr
    assert "Traceback" not in done.stderr
