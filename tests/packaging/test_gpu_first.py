"""First GPU run, rehearsed on a CPU: valid commands, figures arrive."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from gatewayd.cli.bench import options
from gatewayd.cli.bench.dummy import write_llama_8b
from gatewayd.cli.bench.h200 import Comparison
from gatewayd.cli.lazy import load
from gatewayd.config import load as config_load
from tests.gpu.kit import plans
from tests.gpu.kit.lock import ROOT
from tests.gpu.kit.plans import PLANS, Words
from tests.gpu.kit.steps import Result, Step
from tests.gpu.kit.summary import summary
from tests.gpu.probing import shapes

GPU = Words("cuda", "out", "tmp", "--model llama-8b", True)
STEPS = {(name, step.name): step for name, plan in PLANS.items() for step in plan.steps(GPU)}
FILES = {"env.log", "nano.log", "parity.log", "bench.log", "more.log", "offline.json", "serve.json"}
ROWS = [
    *(f"decode_bs{n}_in128_out256" for n in (1, 8, 32, 64, 128, 256)),
    *("prefill_64x4096_out1", "chatlike_1000", "sharedprefix_1000x(1000+50)_out32"),
    *("long_16x16384_out128", "c1", "c32", "c256"),
]


def first(out: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tests/gpu/kit"), "first"],
        cwd=out,
        env={**os.environ, "FIRST_DEVICE": "cpu", "OUT": str(out), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_rows_are_measured_and_told_on_a_small_scale(tmp_path: Path) -> None:
    done = first(tmp_path, FIRST_ONLY="8b:offline", FIRST_MODEL="--scale 0.001")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == (tmp_path / "summary.txt").read_text()
    steps, _, figures = done.stdout.partition("=== figures")
    assert re.findall(r"^(\S+) +rc 0 ", steps, re.MULTILINE) == ["8b:offline"]
    told = [line for line in figures.splitlines() if " vLLM " in line]
    assert list(dict.fromkeys(line.split()[0] for line in told)) == ROWS[:10]
    for line in told:
        assert re.search(r" +[\d,]+\.\d  vLLM +[\d,]+\.\d  x\d+\.\d\d  goal +[\d,]+\.\d ", line)
    assert figures.count(" steps of ") == 10
    assert {file.name for file in tmp_path.iterdir()} == {
        *("bench.log", "offline.json", "summary.txt"),
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_first_run_is_green_on_a_cpu(tmp_path: Path) -> None:
    done = first(tmp_path, FIRST_SECONDS="800")
    assert done.returncode == 0, done.stdout + done.stderr
    names = re.findall(r"^(\S+:\S+) +rc 0 ", done.stdout, re.MULTILINE)
    assert names == [step.name for step in PLANS["first"].steps(GPU) if not step.if_failed]
    assert "the same text" in (tmp_path / "nano.log").read_text()
    assert all(f"\n{row} " in done.stdout for row in ROWS)
    assert {file.name for file in tmp_path.iterdir()} == FILES | {"summary.txt"}


@pytest.mark.parametrize(("plan", "name"), STEPS)
def test_the_commands_of_a_step_are_true(plan: str, name: str) -> None:
    """Options, modules, files and names of tests are there."""
    step = STEPS[plan, name]
    words = shlex.split(step.command.replace("$CAPTURE", "").replace(";", " ; "))
    for place, word in enumerate(words):
        rest = words[place + 1 :]
        if word == "-m" and rest[0] == "gatewayd":
            _parsed(rest[1:])
        elif word == "-m" and rest[0].startswith("tests."):
            assert (ROOT / rest[0].replace(".", "/")).with_suffix(".py").is_file()
        elif re.fullmatch(r"tests/\S+", word):
            assert (ROOT / word).exists(), word
        elif word == "-k":
            files = [ROOT / one for one in words if re.fullmatch(r"tests/\S+/test_\w+\.py", one)]
            text = "".join(file.read_text() for file in files)
            for part in re.findall(r"\w+", rest[0]):
                assert part in ("and", "or", "not") or part in text, part


def _parsed(words: list[str]) -> None:
    """As the command line reads them, without running anything."""
    name, *words = words
    command = load(name)
    if hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    assert not command.make_context(name, words).args
    settings = [one for flag, one in pairwise(words) if flag == "--set"]
    config_load.load(None, options.pairs(settings), {})


def test_the_probes_matrices_are_the_models(tmp_path: Path) -> None:
    write_llama_8b(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    sizes = {
        "hidden_size": shapes.HIDDEN,
        "intermediate_size": shapes.INTERMEDIATE,
        "vocab_size": shapes.VOCAB,
        "num_hidden_layers": shapes.LAYERS,
        "num_attention_heads": shapes.HEADS,
        "num_key_value_heads": shapes.KV_HEADS,
    }
    assert {key: config[key] for key in sizes} == sizes
    number = sum(
        rows * columns * (1 if name == "head" else shapes.LAYERS)
        for name, (rows, columns) in shapes.SHAPES.items()
    )
    assert 2 * number == pytest.approx(15.0e9, rel=5e-3)


def test_steps_that_are_kept_time_for_fit_and_eight_files_come_of_the_first_run() -> None:
    for name, plan in PLANS.items():
        steps = plan.steps(GPU)
        assert sum(step.kept for step in steps) < plan.seconds, name
        assert all(step.kept <= step.seconds for step in steps)
    assert {step.log for step in PLANS["first"].steps(GPU)} < FILES
    said = " ".join(step.command for step in PLANS["first"].steps(GPU))
    assert set(re.findall(r"out/(\w+\.json)", said)) == FILES - {
        step.log for step in PLANS["first"].steps(GPU)
    }
    # Ten minutes for what CI's neighbour would run by hand.
    assert PLANS["first"].seconds < PLANS["gpu"].seconds < 600


def test_measuring_comes_before_testing_and_what_compiles_for_minutes_is_left_out() -> None:
    groups = [step.group for step in PLANS["gpu"].steps(GPU)]
    assert groups == sorted(groups), "bench before tests"
    assert groups[-1] == "tests"
    assert "-m 'gpu and not slow'" in STEPS["gpu", "tests:quick"].command
    assert "-m 'gpu and slow'" in STEPS["all", "tests:slow"].command
    text = (ROOT / "tests/gpu/test_attention.py").read_text()
    assert '@pytest.mark.slow\n@pytest.mark.parametrize("softcap"' in text


def test_without_xdist_and_on_a_cpu_other_words_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "find_spec", lambda name: None)
    made = plans.words("cpu", "a folder", "tmp")
    assert " -n " not in made.pytest("tests/gpu", 4)
    assert made.offline("").endswith("--device cpu --scale 0.02  $CAPTURE")
    assert "--model llama-8b" in plans.words("cuda", "out", "tmp").serve()
    assert made.out == "'a folder'"


def test_a_summary_tells_steps_figures_and_tests_even_if_files_are_missing(tmp_path: Path) -> None:
    step = Step("parity:engine", 10, "parity.log", "pytest")
    (tmp_path / "parity.log").write_text(
        "FAILED tests/a.py::b - no\nmore\n1 failed, 2 passed in 3.1s\n"
    )
    warned = "2026 warning  not captured: steps of 64"
    (tmp_path / "nano.log").write_text(f"##### a warning\n{warned}\nfine\n{warned}\n")
    comparison = Comparison("c1", "ttft_p50_ms", 14.0, 21.4, 15.0, 12.0)
    document = {
        "machine": {"gpu": "NVIDIA H200", "cpu": "Xeon"},
        "model": "llama-8b",
        "dtype": "bfloat16",
        "differences": [],
        "workloads": [],
        "comparisons": [
            {
                "workload": "c1",
                "figure": comparison.figure,
                "measured": comparison.measured,
                "reference": comparison.rival,
                "times_reference": comparison.ratio_to_rival,
                "goal": comparison.goal,
                "limit": comparison.limit,
                "share_of_limit": comparison.share_of_limit,
            }
        ],
    }
    (tmp_path / "serve.json").write_text(json.dumps(document))
    text = summary(
        [Result(step, 1, 4.0, "80 MiB", ("why",)), Result(step, None, 0.0)],
        12.3,
        [tmp_path / "offline.json", tmp_path / "serve.json"],
        [tmp_path / "parity.log", tmp_path / "tests.log"],
        [tmp_path / "nano.log"],
    )
    assert text.splitlines() == [
        "=== steps (12 s)",
        "parity:engine          rc 1      4 s  80 MiB",
        "    | why",
        "parity:engine          skipped, no time",
        "=== figures",
        "NVIDIA H200 llama-8b bfloat16 ",
        f"{'c1':36} {'ttft_p50_ms':26} {'14.0':>10}  vLLM {'21.4':>9}  x1.53"
        f"  goal {'15.0':>9}  limit {'12.0':>9}  share  86%",
        "=== warnings",
        warned,
        "=== tests",
        "FAILED tests/a.py::b - no",
        "1 failed, 2 passed in 3.1s",
    ]
