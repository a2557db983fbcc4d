"""Speculative speedup formula: equals published values and a simulation."""

from __future__ import annotations

import json
import random

import pytest
from typer.testing import CliRunner

from gatewayd.cli.bench.speedup import best, estimate
from gatewayd.cli.spec import app


@pytest.mark.parametrize(
    ("acceptance", "drafts", "cost", "speed_up"),
    [(0.8, 5, 0.1, 2.46), (0.5, 5, 0.1, 1.31), (0.2, 5, 0.1, 0.83), (1.0, 4, 0.0, 5.0)],
)
def test_known_values(acceptance: float, drafts: int, cost: float, speed_up: float) -> None:
    assert estimate(acceptance, drafts, cost).speed_up == pytest.approx(speed_up, abs=0.005)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9])
def test_tokens_of_a_step_are_those_of_thrown_dice(acceptance: float) -> None:
    dice = random.Random(1)
    tokens = 0
    for _ in range(40_000):
        tokens += 1
        for _ in range(4):
            if dice.random() >= acceptance:
                break
            tokens += 1
    assert tokens / 40_000 == pytest.approx(estimate(acceptance, 4, 0).tokens_per_step, rel=0.01)


def test_the_best_is_none_where_drafts_do_not_pay() -> None:
    assert best(0.1, 16, 0.2).drafts == 0
    assert best(0.8, 16, 0.1) == max(
        (estimate(0.8, k, 0.1) for k in range(17)), key=lambda e: e.speed_up
    )
    assert best(0.9, 16, 0.0, token_cost=1.0).drafts == 0


def test_the_command_prints_it() -> None:
    runner = CliRunner()
    said = runner.invoke(app, ["estimate"]).stdout
    assert "5 draft tokens: 3.69 tokens per step, 2.46 x the speed without speculation" in said
    assert "best draft length from 1 to 16: 6 tokens, 2.47 x" in said
    found = json.loads(runner.invoke(app, ["estimate", "--drafts", "2", "--json"]).stdout)
    assert found["drafts"] == 2
    assert found["best"]["drafts"] == 6
    nothing = runner.invoke(app, ["estimate", "--acceptance", "0.05", "--draft-cost", "0.5"])
    assert "no draft length from 1 to 16 is faster than decoding without drafts" in nothing.stdout
    assert runner.invoke(app, ["estimate", "--acceptance", "1.5"]).exit_code == 2
