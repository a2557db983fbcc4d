"""Benchmark: continuous batching against static batching on a trace of mixed lengths.

The same engine, model, batch size and requests; only the scheduler differs, and all must
generate the same tokens. A static batch starts and ends together: its members compute until the
longest has ended, and what they compute beyond their own end is thrown away. The baseline is also
run in a kinder form, in which members leave at their end and their places stay empty.
"""

from __future__ import annotations

import argparse
import random
import sys

from gatewayd_hooks.strategy import Kind
from tests.bench import report
from tests.bench.in_process_engine import Drive, Job, Outcome, make_core
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


def padded(jobs: list[Job], batch: int) -> list[Job]:
    """The same requests, each as long as the longest of its static batch."""
    longest = [
        max(job.output_tokens for job in jobs[first : first + batch])
        for first in range(0, len(jobs), batch)
    ]
    return [Job(job.prompt, longest[i // batch]) for i, job in enumerate(jobs)]


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
    rates: dict[str, list[float]] = {"continuous": [], "static": [], "leaving early": []}
    for seed in range(args.rounds):
        jobs = trace(args.requests, seed)
        total = sum(job.output_tokens for job in jobs)
        runs = {
            "continuous": ("fcfs", jobs),
            "static": ("static", padded(jobs, args.max_running)),
            "leaving early": ("static", jobs),
        }
        order = sorted(runs, reverse=bool(seed % 2))
        outcomes = {name: run(*runs[name], args.max_running) for name in order}
        answers = {
            name: [tokens[: job.output_tokens] for tokens, job in zip(o.tokens, jobs, strict=True)]
            for name, o in outcomes.items()
        }
        if any(answer != answers["continuous"] for answer in answers.values()):
            raise RuntimeError("the schedulers did not generate the same tokens")
        for name, outcome in outcomes.items():
            rates[name].append(total / outcome.seconds)
    ours = report.median(rates["continuous"])
    what = f"{args.requests} requests, {args.max_running} at once"
    findings = [
        report.Finding(
            what, "tok/s", ours, report.median(rates["static"]), "static batching", TARGET
        ),
        report.Finding(
            what, "tok/s", ours, report.median(rates["leaving early"]), "members leave early"
        ),
    ]
    return report.publish(
        *("Continuous batching, mixed lengths", where, findings),
        as_json=args.json,
        strict=args.strict,
        details={"rates": rates},
    )


if __name__ == "__main__":
    sys.exit(main())
