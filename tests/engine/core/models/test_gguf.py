"""GGUF models: tokens equal transformers' with the same weights; refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import save_file

from gatewayd_engine.kv.tiers.fingerprint import fingerprint
from gatewayd_engine.model.spec import SpecError
from gatewayd_engine.process.config import EngineConfig, EngineConfigError, StrategyChoice
from gatewayd_hooks.host.catalog import Catalog, Entry
from tests.engine.core.conftest import CATALOG, build
from tests.engine.core.small_model import small
from tests.engine.core.transformers_oracle import theirs
from tests.engine.gguf_blocks import BLOCKS
from tests.engine.gguf_files import convert

PROMPT = [1, *range(60, 90)]
GGUF = Entry("quantizer", "gguf", "gatewayd", "0.1.0", "gatewayd_quant_gguf")
OURS = Catalog([GGUF, *(entry for entry in CATALOG.entries if entry.plugin != GGUF.plugin)])
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The embedded model's first layers as GGUF, and the same numbers as safetensors."""
    folder, plain = tmp_path_factory.mktemp("gguf"), tmp_path_factory.mktemp("plain")
    numbers = convert(small(), folder, "llama", tuple(BLOCKS))
    shutil.copy(small() / "config.json", plain)
    save_file({name: t.contiguous() for name, t in numbers.items()}, plain / "model.safetensors")
    return folder, plain


def test_tokens_are_those_of_transformers_with_the_same_numbers(
    nano: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, plain = nano
    wanted = theirs(plain, PROMPT, NEW_TOKENS)
    sizes = []
    for is_packed in (False, True):
        tables = {} if is_packed else {"gguf": {"packed": False}}
        choice = StrategyChoice("auto", tables)
        # A path of its own: tests read the weights of a path once.
        (tmp_path / str(is_packed)).symlink_to(folder)
        engine = build(tmp_path / str(is_packed), OURS, quantizer=choice, cpu_activations="float")
        (sequence,) = engine.submit(PROMPT, max_tokens=NEW_TOKENS, ignore_eos=True)
        assert engine.run()[sequence].tokens == wanted
        assert engine.info.strategies["quantizer"] == "gguf"
        sizes.append(engine.info.weight_bytes)
        engine.core.strategies.close()
    assert sizes[1] < 0.4 * sizes[0]


def test_a_gguf_file_needs_its_quantizer(nano: tuple[Path, Path]) -> None:
    with pytest.raises(EngineConfigError, match=r"model.gguf: header.quant_method is 'gguf', but"):
        build(nano[0], OURS)
    with pytest.raises(EngineConfigError, match="the weights are quantized already, but"):
        build(nano[0], OURS, quantizer=StrategyChoice("int8"))
    none = Catalog([entry for entry in OURS.entries if entry.plugin != GGUF.plugin])
    with pytest.raises(SpecError, match="is 'gguf', and no installed quantizer has that name"):
        build(nano[0], none, quantizer=StrategyChoice("auto"))


def test_a_changed_file_is_another_model(nano: tuple[Path, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(nano[0], tmp_path / "copy"))
    config = EngineConfig(
        model=str(folder),
        scheduler=StrategyChoice("fcfs"),
        prefix_cache=None,
        eviction=StrategyChoice("lru"),
        preemption=StrategyChoice("recompute"),
    )
    before = fingerprint(config)
    assert fingerprint(config) == before
    with (folder / "model.gguf").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    assert fingerprint(config) != before


def test_rounded_activations_are_other_kv(nano: tuple[Path, Path]) -> None:
    def of(activations: str) -> bytes:
        config = EngineConfig(
            model=str(nano[0]),
            scheduler=StrategyChoice("fcfs"),
            prefix_cache=None,
            eviction=StrategyChoice("lru"),
            preemption=StrategyChoice("recompute"),
            cpu_activations=activations,
        )
        return fingerprint(config)

    assert of("int8") == of("int8") != of("float")
