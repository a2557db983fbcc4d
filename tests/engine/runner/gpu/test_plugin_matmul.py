"""Plugin matmul on a device runner: an engine's answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.prompts import PROMPTS
from tests.engine.float64_matmul_plugin import catalog
from tests.engine.four_bit_format_plugin import pack


def test_tokens_are_those_of_a_cpu_that_has_the_same_product(
    make_engine: Callable[..., Any],
    make_device_engine: Callable[..., Any],
    make_checkpoint: Callable[..., Path],
    tmp_path: Path,
) -> None:
    folder = make_checkpoint(tmp_path, "llama_biases", max_shard_size="1GB")
    pack(folder)
    fields = {
        "catalog": catalog(),
        "quantizer": StrategyChoice("auto"),
        "quantizer_kernels": [StrategyChoice("plain")],
    }
    answers = []
    for engine in (make_device_engine(folder, **fields), make_engine(folder, **fields)):
        rows = {row.name: row.state for row in engine.core.strategies.report()}
        assert rows["plain"] == "active"
        ids = [engine.submit(p, max_tokens=9, ignore_eos=True)[0] for p in PROMPTS[:3]]
        done = engine.run()
        answers.append([done[i].tokens for i in ids])
    assert answers[0] == answers[1]
