"""Continuous batching beside static batching, on a trace of mixed lengths.

The same engine, model, batch size and requests; only the scheduler differs, and both must
generate the same tokens.
"""

from __future__ import annotations

import argparse
import random
import sys

from gatewayd_hooks.strategy import Kind
from tests.bench import report
from tests.bench.inprocess import Drive, Job, Outcome, make_core
from tests.bench.static_scheduler import StaticScheduler

TARGET = 1.8
STATIC = {(Kind.SCHEDULER, "static"): StaticScheduler}


def trace(count: int, seed: int) -> list[Job]:
    """Requests with log-normal lengths: median 60 in and 60 out, one in ten over 200 out."""
    chance = random.Random(seed)
    jobs = []
    for _ in range(count):
        prompt_len = min(512, max(4, round(60 * chance.lognormvariate(0, 0.8))))
        output_len = min(768, max(1, round(60 * chance.lognormvariate(0, 1.0))))
        prompt = [chance.randrange(300, 4000) for _ in range(prompt_len)]
        jobs.append(Job(prompt, output_len))
    return jobs


def run(scheduler: str, jobs: list[Job], max_running: int) -> Outcome:
    """All requests at once, on a fresh engine."""
    core = make_core(extra=STATIC, scheduler=scheduler, prefix_cache=None, max_running=max_running)
    drive = Drive(core)
    drive.run([Job([5, 6, 7], 4)])
    return drive.run(jobs)


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--max-running", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    rates: dict[str, list[float]] = {"fcfs": [], "static": []}
    steps: dict[str, int] = {}
    for seed in range(args.rounds):
        jobs = trace(args.requests, seed)
        total = sum(job.output_tokens for job in jobs)
        order = ("fcfs", "static") if seed % 2 == 0 else ("static", "fcfs")
        outcomes = {name: run(name, jobs, args.max_running) for name in order}
        if outcomes["fcfs"].tokens != outcomes["static"].tokens:
            raise RuntimeError("the two schedulers did not generate the same tokens")
        for name, outcome in outcomes.items():
            rates[name].append(total / outcome.seconds)
            steps[name] = outcome.stats.step
    finding = report.Finding(
        f"{args.requests} requests, {args.max_running} at once",
        "tok/s",
        report.median(rates["fcfs"]),
        report.median(rates["static"]),
        "static batching",
        TARGET,
    )
    return report.publish(
        *("Continuous batching, mixed lengths", where, [finding]),
        as_json=args.json,
        strict=args.strict,
        details={"rates": rates, "steps_of_last_round": steps},
    )


if __name__ == "__main__":
    sys.exit(main())
