"""Benchmark: 1000 requests with 1000 shared and 50 own tokens: tokens computed, and time.

The first request computes its 1050 tokens, every later one its own 50, though the shared prefix
ends within a page. Beside it, the same requests without the cache.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass

from tests.bench import report
from tests.bench.in_process_engine import Drive, Job, make_core

SHARED, OWN = 1000, 50


@dataclass(frozen=True, slots=True)
class Run:
    """One run's figures; ``computed`` counts prompt tokens alone."""

    computed: int
    hits: int
    seconds: float
    tokens: list[list[int]]


def jobs_of(count: int, output_tokens: int, seed: int) -> list[Job]:
    """Requests that share their beginning and nothing else."""
    chance = random.Random(seed)
    shared = [chance.randrange(300, 4000) for _ in range(SHARED)]
    own = [[chance.randrange(300, 4000) for _ in range(OWN)] for _ in range(count)]
    # No two continue alike, or the cache would find more than the shared part.
    for index, ids in enumerate(own):
        ids[0], ids[1] = 300 + index % 3000, 300 + index // 3000
    return [Job(shared + ids, output_tokens) for ids in own]


def run(jobs: list[Job], page_size: int, cache: str | None) -> Run:
    """The first request to its first token, then all others at once."""
    core = make_core(prefix_cache=cache, page_size=page_size)
    drive = Drive(core)
    drive.run([Job([5, 6, 7], 4)])
    before = core.stats
    begin = time.perf_counter()
    sequences = [drive.submit(jobs[0])]
    while not drive.tokens[sequences[0]]:
        drive.step()
    sequences += [drive.submit(job) for job in jobs[1:]]
    drive.finish()
    seconds = time.perf_counter() - begin
    after = core.stats
    # A generated token is computed too, unless it is the last one.
    decoded = sum(job.output_tokens - 1 for job in jobs)
    return Run(
        computed=after.computed_tokens - before.computed_tokens - decoded,
        hits=after.prefix_hits - before.prefix_hits,
        seconds=seconds,
        tokens=[drive.tokens[s] for s in sequences],
    )


def main() -> int:
    """Run the comparison.

    Raises:
        RuntimeError: the cache changed a token, or a preemption made the count meaningless.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--output-tokens", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    jobs = jobs_of(args.requests, args.output_tokens, seed=1)
    usual = run(jobs, 16, "hash")
    radix = run(jobs, 16, "radix")
    without = run(jobs, 16, None)
    if not usual.tokens == radix.tokens == without.tokens:
        raise RuntimeError("the prefix cache changed what was generated")
    later: int = args.requests - 1

    findings = [
        report.Finding(
            f"prompt tokens computed, {name}",
            "tokens",
            got.computed,
            SHARED + OWN + later * OWN,
            "expected",
            1.0,
            sign="=",
        )
        for name, got in (("hash", usual), ("radix", radix))
    ]
    findings.append(
        report.Finding(
            "with the cache",
            "req/s",
            args.requests / usual.seconds,
            args.requests / without.seconds,
            "without the cache",
        )
    )
    details = {
        name: {"computed": r.computed, "hits": r.hits, "seconds": r.seconds}
        for name, r in (
            ("hash", usual),
            ("radix", radix),
            ("no cache", without),
        )
    }
    title = f"{args.requests} requests with {SHARED} shared and {OWN} own tokens"
    return report.publish(
        *(title, where, findings), as_json=args.json, strict=args.strict, details=details
    )


if __name__ == "__main__":
    sys.exit(main())
