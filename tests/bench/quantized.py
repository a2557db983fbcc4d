"""Benchmark: decode speed with low-bit weights against float32, interleaved on one machine.

Engines of the embedded model decode as many sequences, a few dozen steps each in turn, so that a
slow minute of the machine is shared. They run on one thread: each would set the number of threads
for the other. What is decoded differs, for roundings differ; how much is computed does not.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench import report
from tests.bench.in_process_engine import Drive, Job, make_core

# The engine's threads come before numpy's.
# isort: split
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.quantization import Quantizes
from gatewayd_hooks.strategy import Kind

AT_LEAST = {("int8", 1): 1.0}
"""Of float32's tokens a second, by quantizer and sequences."""
_FLOATS = "float32"
_WARM = 8
TURN = 32
"""Steps of an engine until the next one has its turn: few read the weights of another first."""


class Decoding:
    """An engine all of whose sequences decode.

    Args:
        batch: sequences.
        prompt: tokens of each before it decodes.
        steps: that will be taken.
        fields: of ``EngineConfig``.
    """

    def __init__(self, batch: int, prompt: int, steps: int, **fields: Any) -> None:
        self._drive = Drive(make_core(prefix_cache=None, max_running=batch, **fields))
        chance = random.Random(batch)
        jobs = [
            Job([chance.randrange(300, 4000) for _ in range(prompt)], steps + 2 * _WARM)
            for _ in range(batch)
        ]
        self._sequences = [self._drive.submit(job) for job in jobs]
        while any(not self._drive.tokens[sequence] for sequence in self._sequences):
            self._drive.step()
        for _ in range(_WARM):
            self._drive.step()

    def rate(self, steps: int) -> float:
        """Tokens a second of so many steps."""
        before = self._count()
        began = time.perf_counter()
        for _ in range(steps):
            self._drive.step()
        return (self._count() - before) / (time.perf_counter() - began)

    def _count(self) -> int:
        return sum(len(self._drive.tokens[sequence]) for sequence in self._sequences)


def quantizers() -> list[str]:
    """Those that are installed and round a model of floats."""
    catalog = Catalog.installed()
    host = PluginHost(catalog)
    names = sorted(entry.name for entry in catalog.entries if entry.kind == Kind.QUANTIZER)
    return [
        name for name in names if isinstance(host.strategy(Kind.QUANTIZER, name, {}), Quantizes)
    ]


def compare(
    names: Sequence[str], batch: int, prompt: int, turns: int, threads: int
) -> dict[str, list[float]]:
    """Tokens a second of each engine, turn by turn."""
    made = {
        name: Decoding(
            batch,
            prompt,
            turns * TURN,
            quantizer=None if name == _FLOATS else StrategyChoice(name),
            threads=threads,
        )
        for name in (_FLOATS, *names)
    }
    return alternating(made, turns)


def alternating(made: Mapping[str, Decoding], turns: int) -> dict[str, list[float]]:
    """Tokens a second of each engine, turn by turn, in an order that alternates."""
    rates: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(turns):
        for name in sorted(made, reverse=bool(turn % 2)):
            rates[name].append(made[name].rate(TURN))
    return rates


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quantizers", default="", help="Comma-separated. Default: all.")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    names = [name for name in args.quantizers.split(",") if name] or quantizers()
    findings, details = [], {}
    for batch in map(int, args.batches.split(",")):
        rates = compare(names, batch, args.prompt, args.turns, args.threads)
        details[batch] = rates
        floats = report.median(rates[_FLOATS])
        findings += [
            report.Finding(
                f"{name}, {batch} at once",
                "tok/s",
                report.median(rates[name]),
                floats,
                _FLOATS,
                AT_LEAST.get((name, batch)),
            )
            for name in names
        ]
    return report.publish(
        *("Decoding with weights of few bits", where, findings),
        as_json=args.json,
        strict=args.strict,
        details={"rates": details},
    )


if __name__ == "__main__":
    sys.exit(main())
