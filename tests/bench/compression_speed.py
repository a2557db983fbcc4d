"""Benchmark: decode step time with sparse KV attention, against dense attention.

The embedded model's weights in contexts that are longer than its own: what a step costs does not
depend on what is in it. Steps of all are taken by turns, so that a busy machine is busy for all.
Means are over whole rounds: steps that attend to few, one that attends to all, and the choice.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quality.scheme_model import SchemeModel
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost

NANO = embedded.folder("nano")
EVERY, WARM = 16, 48
ROUNDS = 8
NETWORK = {"network": str(NANO.with_name("nano-predictor"))}
STRATEGIES: dict[str, dict[str, Any]] = {"none": {}, "predictor": NETWORK, "heavy": {}}
HOST = PluginHost(Catalog.installed())


def longer(folder: Path, longest: int) -> Path:
    """The embedded model with another length of its context."""
    for file in NANO.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((NANO / "config.json").read_text("utf-8"))
    config["max_position_embeddings"] = longest
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def opened(model: Path, name: str, budget: float, longest: int) -> SchemeModel:
    """A model with a compression or without."""
    choice = None
    if name != "none":
        choice = StrategyChoice(name, {"budget": budget, **STRATEGIES[name]})
    config = EngineConfig(
        str(model),
        StrategyChoice("fcfs"),
        None,
        StrategyChoice("lru"),
        StrategyChoice("recompute"),
        kv_compression=choice,
        threads=1,
    )
    return SchemeModel(config, HOST, longest)


def speed(model: Path, length: int, budget: float) -> Iterator[dict[str, Any]]:
    """Milliseconds of one processor for a step at the end of a context of this length."""
    ids = [100 + i * 7919 % 3000 for i in range(length)]
    begin = length - WARM - ROUNDS * EVERY
    models = {name: opened(model, name, budget, length) for name in STRATEGIES}
    steps = {name: each.decoded(ids, begin) for name, each in models.items()}
    taken: dict[str, list[float]] = {name: [] for name in models}
    for step in range(WARM + ROUNDS * EVERY):
        for name, each in steps.items():
            began = time.thread_time()
            next(each)
            if step >= WARM:
                taken[name].append((time.thread_time() - began) * 1000)
    for model_of in models.values():
        model_of.close()
    for name, times in taken.items():
        # A round is cheap but for its ends: of other rounds' same steps the median is taken.
        by_step = [median(times[at::EVERY]) for at in range(EVERY)]
        yield {
            "tokens": length,
            "strategy": name,
            "budget": budget if name != "none" else 1.0,
            "mean": mean(by_step),
            "few": median(by_step),
            "most": max(by_step),
        }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, action="append", help="of a context; may be repeated")
    parser.add_argument("--budget", type=float, default=1 / 8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lengths = options.tokens or [1024, 2048, 4096, 8192, 16384]
    print("| tokens | strategy | budget | ms, mean | ms, few | ms, most |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        model = longer(Path(folder), max(lengths))
        for length in lengths:
            for row in speed(model, length, options.budget):
                cells = (f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values())
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
