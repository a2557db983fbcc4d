"""Benchmark: watermark strength and cost: z, perplexity, false positives, time per step.

Answers of 200 tokens by the embedded model, some of which it knows by heart, with each sampler
setting: unmarked, marked as in the paper (the same addend everywhere), and by default. Perplexity
is the model's own, of its raw logits.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gatewayd.text.tokenizer import Tokenizer
from gatewayd_engine.model.embedded import folder
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.logits import Sampling
from gatewayd_logits_watermark.config import WatermarkConfig
from gatewayd_logits_watermark.detector import MarkDetector, detect
from tests.engine.core.conftest import Harness
from tests.engine.core.requests.test_watermark import NEW, SECRET, SETTINGS, TEXTS

TENANTS = ("", "acme", "globex")
MARKS: dict[str, dict[str, float] | None] = {
    "unmarked": None,
    "as in the paper": {"delta": 2.0, "max_delta": 2.0},
    "default": {},
}
NUM_KEYS = 20_000


@dataclass(frozen=True, slots=True)
class Answered:
    """Tokens of one answer, whose it is, and their mean log-probability."""

    tokens: list[int]
    tenant: str
    logprob: float


def answers(mark: Mapping[str, float] | None) -> dict[str, list[Answered]]:
    """Answers by sampler setting."""
    from gatewayd_engine.core.build import assemble
    from gatewayd_engine.process.config import EngineConfig
    from gatewayd_hooks.host.catalog import Catalog
    from gatewayd_hooks.host.loading import PluginHost

    chain = [StrategyChoice(name) for name in ("penalties", "bias", "min_tokens")]
    if mark is not None:
        chain.append(StrategyChoice("watermark", {"secret": SECRET, **mark}))
    config = EngineConfig(
        model=str(folder()),
        scheduler=StrategyChoice("fcfs"),
        prefix_cache=StrategyChoice("hash"),
        eviction=StrategyChoice("lru"),
        preemption=StrategyChoice("recompute"),
        logits_processors=chain,
        kv_pages=2048,
        threads=1,
    )
    built = assemble(config, PluginHost(Catalog.installed()), lambda stage, part: None)
    engine, tokenizer = Harness(built.core, built.info), Tokenizer.from_folder(folder())
    asked = {
        (name, tenant, i): engine.submit(
            tokenizer.encode(text, trusted=True),
            max_tokens=NEW,
            ignore_eos=True,
            tenant=tenant,
            seed=i + 100 * at,
            logprobs=0,
            **settings,
        )[0]
        for name, settings in SETTINGS.items()
        for at, tenant in enumerate(TENANTS)
        for i, text in enumerate(TEXTS)
    }
    done = engine.run()
    engine.core.strategies.close()
    found: dict[str, list[Answered]] = {name: [] for name in SETTINGS}
    for (name, tenant, _), sequence in asked.items():
        answer = done[sequence]
        logprob = float(np.mean([report.logprob for report in answer.logprobs]))
        found[name].append(Answered(answer.tokens, tenant, logprob))
    return found


def false_positives(texts: list[list[int]]) -> dict[str, float]:
    """Shares of unmarked texts, each with many random keys, that look marked."""
    draw = np.random.default_rng(0)
    found = [detect(texts[i % len(texts)], draw.bytes(32), 0.25, 1) for i in range(NUM_KEYS)]
    return {
        "z >= 4": sum(one.z >= 4 for one in found) / NUM_KEYS,
        "is_marked": sum(one.is_marked is True for one in found) / NUM_KEYS,
    }


def step_seconds(rows: int, vocab: int) -> float:
    """Of the processor in one step, in which each row got a token."""
    import torch

    from gatewayd_logits_watermark.strategy import Watermark

    torch.set_num_threads(1)
    processor = Watermark(WatermarkConfig(secret=SECRET))
    processor.open(engine_resources(vocab_size=vocab, max_running=rows))
    for row in range(rows):
        processor.admit(row, Sampling(), np.array([row], np.int32), np.zeros(0, np.int32))
    every, logits = torch.arange(rows), torch.zeros(rows, vocab)
    seconds = []
    for i in range(60):
        began = time.perf_counter()
        processor.apply(logits, every, every)
        processor.append(every, (every * 7 + i * i) % vocab)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args().json
    detector = MarkDetector(WatermarkConfig(secret=SECRET))
    tokenizer = Tokenizer.from_folder(folder())
    by_mark = {name: answers(mark) for name, mark in MARKS.items()}
    rows: list[dict[str, Any]] = []
    for name in SETTINGS:
        row: dict[str, Any] = {"setting": name}
        for mark, found in by_mark.items():
            z = [detector.detect(one.tokens, one.tenant).z for one in found[name]]
            perplexity = math.exp(-float(np.mean([one.logprob for one in found[name]])))
            row |= {
                f"{mark}, z least": round(min(z), 1),
                f"{mark}, z median": round(float(np.median(z)), 1),
                f"{mark}, perplexity": round(perplexity, 2),
            }
        rows.append(row)
    read = [
        detector.detect(tokenizer.encode(tokenizer.decode(one.tokens)), one.tenant)
        for found in by_mark["default"].values()
        for one in found
    ]
    unmarked = [one.tokens for found in by_mark["unmarked"].values() for one in found]
    sizes = ((1, 4096), (64, 4096), (64, 151_936))
    result = {
        "answers": rows,
        "marked, of texts read back": sum(one.is_marked is True for one in read) / len(read),
        "least z, of texts read back": round(min(one.z for one in read), 1),
        f"false positives, {NUM_KEYS} keys": false_positives(unmarked),
        "milliseconds a step": {
            f"{count} x {vocab}": round(1e3 * step_seconds(count, vocab), 3)
            for count, vocab in sizes
        },
    }
    if as_json:
        print(json.dumps(result, indent=2))
        return 0
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    for key, value in list(result.items())[1:]:
        print(f"{key}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
