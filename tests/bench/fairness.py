"""What schedulers promise to tenants and to deadlines, in simulated time: the same on any machine.

The schedulers are the real ones; steps take 5 ms and 0.1 ms a token (``tests.plugins.traffic``).
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
from tests.plugins.test_admissions import serve
from tests.plugins.test_sched_fair import MAXIMAL, Watch, fair_queue
from tests.plugins.traffic import Ask, Machine, Run, p, poisson

SECONDS = 300.0
MAKE: dict[str, Callable[[], SchedulerStrategy]] = {
    "fcfs": lambda: Fcfs(FcfsConfig()),
    "fair": lambda: Fair(FairConfig()),
    "slo": lambda: LeastSlack(SloConfig()),
}


def light_and_heavy(rate: float) -> list[Ask]:
    """Two requests a second of a light tenant, and so many of a heavy one."""
    light = poisson(2, SECONDS, 1, (100, 400), (20, 60), tenant=1)
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
    options = parser.parse_args()
    beside, loads, gap = neighbours(), overloads(), widest(range(60))
    fair = beside[1]
    change = fair["beside 30/s"][1] / fair["beside 5/s"][1]
    doubled = next(row["ratio"] for row in loads if row["load"] == 2.0)
    targets = {
        "p99 beside 30/s to that beside 5/s, at most 1.2": (change, change <= 1.2),
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
