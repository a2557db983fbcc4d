"""Benchmark: throughput of guided decoding, and mask time per step and per sequence.

Three engines take one step each by turns: free answers, answers that follow a schema which never
ends, a token a step, and the same as shipped: what the schema forces takes one step where it pays.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import SamplingParams, Submit
from gatewayd_hooks.strategy import Kind
from tests.bench import report
from tests.bench.in_process_engine import make_core

LEAST = 0.85
"""Of the throughput of free answers: masks may take 15 %."""
ROUND = 10
"""Steps; a ratio is of a round of one engine and the same round of the other."""
WARM = 12
SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "size": {"type": "integer"},
            "kind": {"enum": ["module", "class", "function"]},
        },
        "required": ["name", "size", "kind"],
        "additionalProperties": False,
    },
    "minItems": 10_000,
}
"""Nobody comes to its end."""


def batch_of(guide: str | None, batch: int, num_steps: int, *, jumps: bool) -> Any:
    """A core whose batch decodes."""
    core: Any = make_core(guide=guide and StrategyChoice(guide), max_running=batch)
    if not jumps:
        core.strategies.processors.forced_by_guide = lambda row: ()
    for index in range(batch):
        params = SamplingParams(
            max_tokens=8 * (num_steps + 2 * WARM),
            ignore_eos=guide is None,
            seed=index,
            guide=("json_schema", json.dumps(SCHEMA)) if guide else None,
        )
        prompt = np.array([300 + index] * 16, np.int32).tobytes()
        core.submit(Submit([index + 1], prompt, params))
    while core.stats.num_running < batch:
        core.step()
    for _ in range(WARM):
        core.step()
    return core


def mask_seconds(core: Any) -> float:
    """That its guide has taken for masks so far, most of them beside the layers."""
    accounts: dict[Any, Any] = core.strategies.plugin_times._accounts
    return sum(
        float(account.seconds)
        for (kind, _, method), account in accounts.items()
        if kind is Kind.GUIDE and method == "fill_many"
    )


def timed(core: Any) -> tuple[float, int]:
    """Seconds of a step, and its tokens."""
    began = time.perf_counter()
    output = core.step()
    return time.perf_counter() - began, len(output.tokens) // 4


def rates(seconds: list[float], tokens: list[int]) -> list[float]:
    """Tokens a second, round by round."""
    starts = range(0, len(seconds), ROUND)
    return [sum(tokens[at : at + ROUND]) / sum(seconds[at : at + ROUND]) for at in starts]


def throughput(name: str, ours: list[float], free: list[float]) -> report.Finding:
    """The median ratio of the rounds, told by the median round of free answers."""
    ratio = report.median([a / b for a, b in zip(ours, free, strict=True)])
    base = report.median(free)
    return report.Finding(name, "tok/s", ratio * base, base, "free answers", LEAST)


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--guide", default="llguidance")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    cores = {
        "free": batch_of(None, args.batch, args.steps, jumps=False),
        "guided": batch_of(args.guide, args.batch, args.steps, jumps=False),
        "jumping": batch_of(args.guide, args.batch, args.steps, jumps=True),
    }
    before = {name: mask_seconds(core) for name, core in cores.items()}
    seconds: dict[str, list[float]] = {name: [] for name in cores}
    tokens: dict[str, list[int]] = {name: [] for name in cores}
    for _ in range(args.steps):
        for name, core in cores.items():
            spent, count = timed(core)
            seconds[name].append(spent)
            tokens[name].append(count)
    masks = (mask_seconds(cores["guided"]) - before["guided"]) / args.steps
    by_round = {name: rates(seconds[name], tokens[name]) for name in cores}
    findings = [
        throughput("throughput, as shipped", by_round["jumping"], by_round["free"]),
        throughput("throughput, a token a step", by_round["guided"], by_round["free"]),
        report.Finding(
            "a step, a token each, median",
            "ms",
            1000 * report.median(seconds["guided"]),
            1000 * report.median(seconds["free"]),
            "free answers",
        ),
        report.Finding(
            "masks of a step",
            "us",
            1e6 * masks,
            1e6 * report.median(seconds["free"]),
            "a free step",
        ),
        report.Finding(
            "masks by sequence", "us", 1e6 * masks / args.batch, 1e6 * masks, "all of them"
        ),
    ]
    return report.publish(
        *(f"What {args.guide} costs at batch {args.batch}", where, findings),
        as_json=args.json,
        strict=args.strict,
        details={"seconds": seconds, "tokens": tokens},
    )


if __name__ == "__main__":
    sys.exit(main())
