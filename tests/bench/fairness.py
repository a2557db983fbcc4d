"""Benchmark: scheduler fairness between tenants and deadlines met, in simulated time.

Real schedulers; steps take 5 ms and 0.1 ms a token (``tests.plugins.scheduling.simulated_traffic``)
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gatewayd_admit_forecast.config import ForecastConfig
from gatewayd_admit_forecast.strategy import Forecast
from gatewayd_hooks.scheduling import SchedulerStrategy
from gatewayd_sched_fair.config import FairConfig
from gatewayd_sched_fair.strategy import Fair
from gatewayd_sched_fcfs.config import FcfsConfig
from gatewayd_sched_fcfs.strategy import Fcfs
from gatewayd_sched_slo.config import SloConfig
from gatewayd_sched_slo.strategy import LeastSlack
from tests.plugins.scheduling.simulated_traffic import Ask, Machine, Run, p, poisson
from tests.plugins.scheduling.test_admissions import serve
from tests.plugins.scheduling.test_sched_fair import MAXIMAL, Watch, fair_queue

SECONDS = 300.0
SEEDS = (1, 2, 3, 4)
MAKE: dict[str, Callable[[], SchedulerStrategy]] = {
    "fcfs": lambda: Fcfs(FcfsConfig()),
    "fair": lambda: Fair(FairConfig()),
    "slo": lambda: LeastSlack(SloConfig()),
}


def light_and_heavy(rate: float, seed: int = 1) -> list[Ask]:
    """Two requests a second of a light tenant, and so many of a heavy one."""
    light = poisson(2, SECONDS, seed, (100, 400), (20, 60), tenant=1)
    heavy = poisson(rate, SECONDS, 5, (100, 1000), (50, 300)) if rate else []
    return [*light, *heavy]


def neighbours() -> list[dict[str, Any]]:
    """The light tenant's p50 and p99 beside others, in milliseconds."""
    rows = []
    for name in ("fcfs", "fair"):
        row: dict[str, Any] = {"scheduler": name}
        for rate in (0, 3, 5, 30):
            run = Run(Machine(), MAKE[name]()).play(light_and_heavy(rate), until=SECONDS)
            ttfts = run.ttfts(1)
            row[f"beside {rate}/s"] = [round(1000 * p(q, ttfts), 1) for q in (0.5, 0.99)]
            tokens = sum(a.ask.prompt + a.ask.output for a in run.answered if a.seconds < SECONDS)
            row[f"tokens/s, {rate}/s"] = round(tokens / SECONDS)
        rows.append(row)
    return rows


def pooled(config: FairConfig, rate: float) -> tuple[list[float], float, float]:
    """Beside a heavy tenant, over four courses of the light one.

    Returns:
        The light tenant's seconds to the first token; tokens a second of all that ended; and
        milliseconds between two tokens of the heavy tenant's answers, their mean.
    """
    ttfts: list[float] = []
    tokens, gaps = 0, []
    for seed in SEEDS:
        run = Run(Machine(), Fair(config)).play(light_and_heavy(rate, seed), until=SECONDS)
        ended = [answer for answer in run.answered if answer.seconds < SECONDS]
        ttfts += run.ttfts(1)
        tokens += sum(answer.ask.prompt + answer.ask.output for answer in ended)
        gaps += [(a.seconds - a.ttft) / (a.ask.output - 1) for a in ended if a.ask.tenant == 0]
    mean = 1000 * sum(gaps) / len(gaps) if gaps else 0.0
    return ttfts, tokens / SECONDS / len(SEEDS), mean


def settings() -> list[dict[str, Any]]:
    """What each setting of ``fair`` is worth to the light tenant, and what it costs the heavy one.

    The heavy one asks for 12 a second, more than the machine does: more would only wait longer.
    """
    alone = p(0.99, pooled(FairConfig(), 0)[0])
    longest = 2.0 * Machine().context
    rows = []
    for change in (
        {},
        {"crowd_share": 0.1},
        {"crowd_share": 0.15},
        {"crowd_share": 0.3},
        {"crowd_pause": 0},
        {"credit": longest / 8},
        {"credit": longest / 2},
    ):
        ttfts, tokens, gap = pooled(FairConfig.model_validate(change), 12)
        half, most = p(0.5, ttfts), p(0.99, ttfts)
        name = ", ".join(f"{key} {value:g}" for key, value in change.items()) or "as it is"
        rows.append(
            {
                "setting": name,
                "p50, p99 ms": [round(1000 * half, 1), round(1000 * most, 1)],
                "p99 to alone": round(most / alone, 2),
                "tokens/s": round(tokens),
                "ms between tokens": round(gap, 1),
            }
        )
    return rows


def widest(seeds: Sequence[int]) -> float:
    """The widest gap between two tenants that both wait, in maximal requests."""
    worst = 0.0
    for seed in seeds:
        draw = random.Random(seed)
        weights = [draw.choice([0.25, 1.0, 1.0, 2.0, 5.0]) for _ in range(draw.randint(2, 4))]
        queue = fair_queue(
            max_batch_tokens=draw.choice([16, 48, 64]),
            max_running=draw.randint(2, 24),
            num_pages=draw.choice([40, 80, 10_000]),
        )
        watch = Watch(queue, weights)
        depths = [draw.randint(1, 12) for _ in weights]
        sizes = [(draw.randint(1, 300), draw.randint(1, 200)) for _ in weights]
        for step in range(400):
            counts = [
                sum(s.tenant == tenant for s in queue.waiting) for tenant in range(len(weights))
            ]
            for tenant, (prompt, output) in enumerate(sizes):
                if (step // 60 + tenant) % 3 != 2:
                    for _ in range(depths[tenant] - counts[tenant]):
                        watch.arrive(prompt, output, tenant)
            if len(queue):
                watch.step()
        worst = max(worst, watch.widest / MAXIMAL)
    return worst


def overloads() -> list[dict[str, Any]]:
    """Goodput at multiples of what the machine can do, first tokens within a second."""
    rows = []
    for load in (0.5, 1.0, 2.0, 4.0):
        asks = poisson(9 * load, SECONDS, 3, (200, 1400), (5, 40), deadline=1.0)
        row: dict[str, Any] = {"load": load}
        for name in ("fcfs", "slo"):
            row[name] = round(Run(Machine(), MAKE[name]()).play(asks).goodput(SECONDS), 2)
        run = serve(MAKE["slo"](), asks, Forecast(ForecastConfig()))
        row["slo and forecast"] = round(run.goodput(SECONDS), 2)
        row["of those taken on, in time"] = round(
            run.goodput(SECONDS) * SECONDS / len(run.answered), 3
        )
        row["ratio"] = round(row["slo and forecast"] / row["fcfs"], 2)
        rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    heads = list(rows[0])
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    lines += [f"| {' | '.join(str(row[head]) for head in heads)} |" for row in rows]
    return "\n".join(lines)


def main() -> int:
    """Run all and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--settings", action="store_true", help="only those of fair, one by one")
    options = parser.parse_args()
    if options.settings:
        rows = settings()
        print(json.dumps(rows) if options.json else table(rows))
        return 0
    beside, loads, gap = neighbours(), overloads(), widest(range(60))
    fair = beside[1]
    change = fair["beside 30/s"][1] / fair["beside 5/s"][1]
    added = fair["beside 30/s"][1] / fair["beside 0/s"][1]
    doubled = next(row["ratio"] for row in loads if row["load"] == 2.0)
    targets = {
        "p99 beside 30/s to that beside 5/s, at most 1.2": (change, change <= 1.2),
        "p99 beside 30/s to that alone, at most 1.2": (added, added <= 1.2),
        "widest gap in maximal requests, at most 1": (gap, gap <= 1),
        "goodput at twice the load to that of fcfs, at least 1.5": (doubled, doubled >= 1.5),
    }
    if options.json:
        print(json.dumps({"neighbours": beside, "overloads": loads, "gap": gap}))
    else:
        print("First token of a light tenant, p50 and p99 in ms:\n")
        print(table(beside))
        print("\nRequests a second in time:\n")
        print(table(loads))
        for name, (value, is_met) in targets.items():
            print(f"\n{name}: {value:.2f}{'' if is_met else '  MISSED'}")
    return int(options.strict and not all(is_met for _, is_met in targets.values()))


if __name__ == "__main__":
    sys.exit(main())
