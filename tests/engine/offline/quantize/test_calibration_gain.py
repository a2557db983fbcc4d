"""Calibration gain: less loss than round-to-nearest with the same groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gatewayd.cli.quality.texts import samples
from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quality.evaluate import measure
from gatewayd_engine.offline.quality.job import QualityFigures, QualityScheme, SchemeMeasured
from gatewayd_engine.offline.quality.job import QualityJob as Measuring
from gatewayd_engine.offline.quantize.job import CheckpointWritten, Event, QuantizeJob
from gatewayd_engine.offline.quantize.run import quantize
from gatewayd_engine.offline.quantize.texts import bundled
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost

HOST = PluginHost(Catalog.installed())


def written(out: Path, model: Path, to: str, ids: list[list[int]]) -> Path:
    events: list[Event] = []
    quantize(QuantizeJob(str(model), str(out), StrategyChoice(to), ids), HOST, events.append)
    assert isinstance(events[-1], CheckpointWritten), events[-1]
    return out


def config(model: Path) -> EngineConfig:
    return EngineConfig(
        model=str(model),
        scheduler=StrategyChoice("fcfs"),
        prefix_cache=None,
        eviction=StrategyChoice("lru"),
        preemption=StrategyChoice("recompute"),
        quantizer=StrategyChoice("auto"),
    )


def figures(whole: Path, folders: list[Path], tokens: int) -> list[dict[str, QualityFigures]]:
    """What each folder loses beside the whole model, by kinds of texts that no one has seen."""
    found: list[Any] = []
    schemes = [QualityScheme(folder.name, config(folder)) for folder in folders]
    texts = samples(whole, None, tokens, 1024)
    measure(Measuring(QualityScheme("whole", config(whole)), schemes, texts), HOST, found.append)
    return [one.kinds for one in found if isinstance(one, SchemeMeasured)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_awq_and_gptq_beat_the_nearest_on_the_embedded_model(tmp_path: Path) -> None:
    """By perplexity and by divergence, of chats and of code."""
    nano = embedded.folder()
    ids = [sample.ids for sample in samples(nano, None, 40_000, 2048, bundled)]
    folders = [
        written(tmp_path / "nearest", nano, "awq", []),
        written(tmp_path / "awq", nano, "awq", ids),
        written(tmp_path / "gptq", nano, "gptq", ids),
    ]
    nearest, awq, gptq = figures(nano, folders, 10_000)
    for kind, before in nearest.items():
        for after, most in ((awq[kind], 0.8), (gptq[kind], 0.85)):
            assert after.perplexity < before.perplexity
            assert (after.kl_mean or 1) < most * (before.kl_mean or 0)
