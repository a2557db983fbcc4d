"""Benchmark: prefix cache match time for prompts of up to 128k tokens.

One sequence is published whole, then looked up at every length. The time must grow in proportion
to the blocks of 16 tokens, with at most a microsecond for each.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.fakes import engine_resources
from tests.bench import report

PAGE = 16
MOST_TOKENS = 128 * 1024
LENGTHS = tuple(MOST_TOKENS * part // 16 for part in range(1, 17))
MOST_SECONDS_PER_BLOCK = 1e-6
LEAST_R_SQUARED = 0.99


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through the times.

    Attributes:
        seconds: of each length, the best of the rounds, shape ``[len(LENGTHS)]``.
        per_block: the slope, in seconds.
        r_squared: how straight it is.
    """

    seconds: list[float]
    per_block: float
    r_squared: float


def opened(name: str, num_pages: int) -> Any:
    """A prefix cache as the engine opens it."""
    cache = PluginHost(Catalog.installed()).strategy(Kind.PREFIX_CACHE, name, {})
    cache.open(engine_resources(page_size=PAGE, num_pages=num_pages))
    return cache


def measure(name: str, rounds: int = 15) -> Line:
    """Match every length several times, in turns.

    Raises:
        RuntimeError: a match was not found whole.
    """
    num_pages = MOST_TOKENS // PAGE
    cache = opened(name, num_pages)
    tokens = np.random.default_rng(1).integers(0, 50_000, MOST_TOKENS, np.int32)
    cache.insert(cache.begin(tokens, b""), tokens, np.arange(num_pages, dtype=np.int32))
    trails = [cache.begin(tokens[:length], b"") for length in LENGTHS]
    best = [float("inf")] * len(LENGTHS)
    for _ in range(rounds):
        for index, (trail, length) in enumerate(zip(trails, LENGTHS, strict=True)):
            # The first one of a length finds the processor's caches full of another.
            for _ in range(3):
                began = time.perf_counter()
                found = cache.match(trail)
                best[index] = min(best[index], time.perf_counter() - began)
            if len(getattr(found, "pages", found)) != length // PAGE:
                raise RuntimeError(f"{name} did not find {length} tokens")
    blocks = np.array(LENGTHS) / PAGE
    slope = float(np.polyfit(blocks, best, 1)[0])
    return Line(best, slope, float(np.corrcoef(blocks, best)[0, 1] ** 2))


def main() -> int:
    """Measure both caches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    lines = {name: measure(name) for name in ("hash", "radix")}
    findings = []
    for name, line in lines.items():
        per_block = max(s * PAGE / n for s, n in zip(line.seconds, LENGTHS, strict=True))
        findings += [
            report.Finding(
                f"{name}: a match of up to 128k tokens",
                "us a block at most",
                1e6 * per_block,
                1e6 * MOST_SECONDS_PER_BLOCK,
                "promised",
                1.0,
                sign="<=",
            ),
            report.Finding(
                f"{name}: straightness of its time",
                "R squared",
                line.r_squared,
                LEAST_R_SQUARED,
                "promised",
                1.0,
            ),
        ]
    details = {name: {"seconds": line.seconds} for name, line in lines.items()}
    return report.publish(
        *("A match over the length of the prompt", where, findings),
        as_json=args.json,
        strict=args.strict,
        details=details,
    )


if __name__ == "__main__":
    sys.exit(main())
