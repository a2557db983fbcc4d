"""A thousand damaged config.json: one sentence or a served model, in bounded time and memory."""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.spec import SpecError
from gatewayd_engine.process.config import EngineConfigError, StrategyChoice
from tests.engine.conftest import write_checkpoint
from tests.engine.core.conftest import build
from tests.engine.core.models.damaged_configs import damaged
from tests.engine.core.models.tiny_families import write_tiny

NATIVE = (
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "mixtral", "qwen3_moe"),
    *("gemma3", "olmo3", "smollm3", "glm4", "deepseek_v2", "deepseek_v3"),
    *("qwen2_moe", "glm4_moe", "gpt_oss", "llama4"),
)
OTHERS = ("gpt2", "olmo", "starcoder2", "granitemoe", "gpt_neox", "opt", "cohere2", "apertus")
EACH = 63
"""Damages of each family: 1,638 in all."""
SOME = 5
"""Of those that a trace of transformers follows, ordinarily."""
MOST_SECONDS = 30.0
"""Of a core; a model of 512 layers takes 8."""
MEMORY = 1 << 30
"""Bytes of address space that a start may add."""


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let allocations fail that exceed ``MEMORY``."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcome(folder: Path) -> str:
    """What a start says, and a first token; empty if it is served."""
    try:
        with bounded_memory():
            engine = build(folder, model_backend=StrategyChoice("auto"))
            try:
                (sequence,) = engine.submit([3], max_tokens=1, ignore_eos=True)
                answer = engine.run()[sequence]
                assert answer.finished is not None
                if answer.finished.error is not None:
                    # Logits that are no numbers, of norms or scales that are none.
                    return str(answer.finished.error)
                assert len(answer.tokens) == 1
            finally:
                engine.core.strategies.close()
    except (SpecError, LoadError, EngineConfigError) as error:
        return str(error)
    return ""


def campaign(folder: Path, tmp_path: Path, cases: range) -> None:
    """Damage the config.json of a folder, once for each case."""
    whole = json.loads((folder / "config.json").read_text())
    results = []
    for case in cases:
        data = damaged(whole, random.Random(f"{folder.name} {case}"))
        (folder / "config.json").write_bytes(data)
        # A path of its own: tests read the weights of a path once.
        (path := tmp_path / f"case {case}").symlink_to(folder)
        began = time.process_time()
        said = outcome(path)
        assert time.process_time() - began < MOST_SECONDS, data
        assert said.isprintable(), data
        assert len(said) < 2000, data
        results.append(bool(said))
    # Both happen, so neither is all that is tested.
    assert len(cases) < EACH or 0 < sum(results) < len(cases)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", NATIVE)
def test_a_damaged_config_of_a_native_family_is_refused_or_served(
    family: str, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"max_shard_size": "1GB", "num_hidden_layers": 2}
    campaign(write_checkpoint(tmp_path / family, family, **sizes), tmp_path, range(EACH))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", OTHERS)
def test_a_damaged_config_of_another_family_is_refused_or_served(
    family: str, tmp_path: Path
) -> None:
    write_tiny(tmp_path / family, family)
    campaign(tmp_path / family, tmp_path, range(SOME))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", OTHERS)
def test_more_damaged_configs_of_another_family_are_refused_or_served(
    family: str, tmp_path: Path
) -> None:
    write_tiny(tmp_path / family, family)
    campaign(tmp_path / family, tmp_path, range(SOME, SOME + EACH))
