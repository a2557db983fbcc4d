"""Benchmark: decode speed of the embedded model by each model backend, interleaved on one machine.

The engine's own decoder with compiled kernels, the same in torch, and the layers of transformers
over the same KV cache: what the generality of the last costs. Each engine decodes some dozens of
steps in turn, on one thread.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tests.bench import report
from tests.bench.quantized import TURN, Decoding, alternating

# The engine's threads come before numpy's.
# isort: split
from gatewayd_engine.process.config import StrategyChoice

_NATIVE = "native"
_ENGINES: dict[str, dict[str, Any]] = {
    _NATIVE: {},
    "native in torch": {"cpu_kernels": "torch"},
    "transformers": {"model_backend": StrategyChoice("transformers")},
    "transformers in torch": {
        "model_backend": StrategyChoice("transformers"),
        "cpu_kernels": "torch",
    },
}


def compare(batch: int, prompt: int, turns: int) -> dict[str, list[float]]:
    """Tokens a second of each engine, turn by turn."""
    made = {
        name: Decoding(batch, prompt, turns * TURN, threads=1, **fields)
        for name, fields in _ENGINES.items()
    }
    return alternating(made, turns)


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    findings, details = [], {}
    for batch in map(int, args.batches.split(",")):
        details[batch] = rates = compare(batch, args.prompt, args.turns)
        native = report.median(rates.pop(_NATIVE))
        findings += [
            report.Finding(
                f"{name}, {batch} at once", "tok/s", report.median(each), native, _NATIVE
            )
            for name, each in rates.items()
        ]
    return report.publish(
        *("Decoding by model backend", where, findings),
        as_json=args.json,
        strict=False,
        details={"rates": details},
    )


if __name__ == "__main__":
    sys.exit(main())
