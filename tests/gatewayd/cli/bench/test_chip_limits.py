"""Chip limits: the formula equals the values worked out for the H200, and other chips differ."""

from __future__ import annotations

import pytest

from gatewayd.cli.bench.chip_limits import least_seconds, on_chip
from gatewayd.cli.bench.chips import CHIPS, Chip
from gatewayd.cli.bench.h200 import Comparison, KnownFigure, compare, reference
from gatewayd.cli.bench.hardware_floor import batch_seconds, prompt_seconds
from gatewayd.cli.bench.offline.workloads import KEYS, WORKLOADS
from gatewayd.cli.bench.run import BenchRun
from gatewayd.cli.bench.tables import TableRows
from gatewayd.cli.bench.target import subject

H200 = "NVIDIA H200"
H100 = "NVIDIA H100 80GB HBM3"
DECODE_1, DECODE_256 = "decode_bs1_in128_out256", "decode_bs256_in128_out256"


def stored(name: str) -> KnownFigure:
    known = reference()
    return known.offline.get(name) or known.served[name]


@pytest.mark.parametrize("name", [*KEYS, "c32", "c256"])
def test_the_stored_limits_are_the_formulas(name: str) -> None:
    """But for the two that count more than the formula does: prompts over pages, uneven answers."""
    within = {"chatlike_1000": 0.03, "long_16x16384_out128": 0.04}.get(name, 0.01)
    for figure, limit in stored(name).limits.items():
        seconds = least_seconds(CHIPS[H200], name, figure)
        if name in KEYS:
            made = WORKLOADS[KEYS[name]](0)
            counted = {
                "output_tokens_per_second": sum(made.output_lens),
                "input_tokens_per_second": sum(map(len, made.prompts)),
                "requests_per_second": len(made.own),
            }[figure]
        else:
            counted = int(name[1:]) * 128
        assert counted / seconds == pytest.approx(limit, rel=within)


def test_a_prompt_multiplies_and_a_step_reads_what_paper_says() -> None:
    chip = Chip(4.8, 989)
    assert chip.read == pytest.approx(3.97e12)
    assert chip.multiplied == pytest.approx(790e12)
    # 14 billion operations a token; half of the first 512 x 512 keys are seen.
    assert prompt_seconds(chip, 512) == pytest.approx(
        512 * 13.96e9 / 790e12 + 6.87e10 / 600e12, rel=1e-3
    )
    # One prompt's beginning for all.
    alone = batch_seconds(chip, [1000] * 64, [1] * 64)
    assert batch_seconds(chip, [1000] * 64, [1] * 64, shared=900) < alone / 5
    # One token takes a step of prompts; a second one 15 GB more.
    one, two = (batch_seconds(chip, [8], [n]) for n in (1, 2))
    assert two - one == pytest.approx(15.01e9 / 3.97e12, rel=1e-3)


def test_a_chip_with_slower_memory_has_lower_limits_where_memory_limits() -> None:
    def limit(name: str, chip: str) -> float:
        (one,) = compare(name, stored(name), dict.fromkeys(stored(name).goals, 100.0))
        return on_chip(one, chip).limit or 0.0

    assert limit(DECODE_1, H200) == 264
    assert limit(DECODE_1, H100) == pytest.approx(264 * 3.35 / 4.8, rel=1e-3)
    assert limit("prefill_64x4096_out1", H100) == pytest.approx(51_400)
    assert 3.35 / 4.8 < limit(DECODE_256, H100) / limit(DECODE_256, H200) < 1
    wait, gap = compare("c1", stored("c1"), {"ttft_p50_ms": 13.0, "tpot_p50_ms": 6.0})
    assert on_chip(wait, H100).limit == pytest.approx(12)
    assert on_chip(gap, H100).limit == pytest.approx(3.8 * 4.8 / 3.35, rel=1e-3)
    assert on_chip(gap, H100).share_of_limit == pytest.approx(0.907, abs=1e-3)
    assert on_chip(gap, "NVIDIA T1000").limit is None


@pytest.mark.parametrize("chip", CHIPS)
def test_every_limit_is_known_of_every_chip(chip: str) -> None:
    for name in ("c1", "c32", "c256", DECODE_1):
        for one in compare(name, stored(name), dict.fromkeys(stored(name).goals, 1.0)):
            assert (on_chip(one, chip).limit or 0) > 0


@pytest.mark.parametrize(
    ("gpu", "scale", "limit", "said"),
    [
        (H200, 1.0, 264.0, "one NVIDIA H200"),
        (H100, 1.0, 184.0, "no verdict on the goals: the machine is NVIDIA H100"),
        ("NVIDIA T1000", 1.0, None, "The hardware limits of NVIDIA T1000 are not known"),
        (H200, 0.5, None, "cut to 0.5"),
        ("", 1.0, None, "without a GPU"),
    ],
)
def test_a_run_has_the_limits_of_its_chip_if_nothing_else_differs(
    gpu: str, scale: float, limit: float | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with subject("llama-8b", "cpu", {"model.dtype": "bfloat16"}) as found:
        run = BenchRun(found, "cpu", "bfloat16", scale)
    run.gpu = gpu
    figure = "output_tokens_per_second"
    run.comparisons = [Comparison(DECODE_1, figure, 150.0, 200.8, 235.0, 264.0)]
    (told,) = run.as_document()["comparisons"]
    assert told["limit"] == (limit and pytest.approx(limit, rel=1e-2))
    assert told["share_of_limit"] == (limit and pytest.approx(150 / limit, rel=1e-2))
    assert (told["kept"] is None) == (gpu != H200 or scale != 1)
    run.show("markdown", "offline", TableRows(["more"], []))
    printed = capsys.readouterr().out
    assert said in printed
    assert f"limit, {(gpu or H200).removeprefix('NVIDIA ')} |" in printed
