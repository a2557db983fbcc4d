"""Quantized engines: answers, refusals and fingerprints."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.model.json_fields import SpecError
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.process.config import EngineConfigError, StrategyChoice
from gatewayd_engine.process.messages import SwapStrategy
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.host.errors import NotInstalled
from gatewayd_hooks.quantization import GroupedWeight, Matrix
from gatewayd_quant_fp8.config import Fp8QuantizerConfig
from gatewayd_quant_fp8.strategy import Fp8Quantizer
from gatewayd_quant_int8.strategy import Int8Quantizer
from gatewayd_quant_sparse24.strategy import Sparse24
from tests.engine.core.conftest import Harness, build
from tests.engine.core.small_model import small
from tests.engine.core.transformers_oracle import theirs
from tests.engine.four_bit_format_plugin import announce, catalog, meant, pack, rounded

PROMPT = [1, *range(60, 90)]
CATALOG = catalog()
INT8 = StrategyChoice("int8")
AUTO = StrategyChoice("auto")

Make = Callable[..., Harness]


@pytest.fixture
def engine() -> Iterator[Make]:
    """Engines that know the stranger's quantizers; closed afterwards."""
    opened: list[Harness] = []

    def make(
        model: Path | None = None, quantizer: StrategyChoice | None = None, **more: Any
    ) -> Any:
        opened.append(build(model, CATALOG, quantizer=quantizer, **more))
        return opened[-1]

    yield make
    for one in opened:
        one.core.check()
        one.core.strategies.close()


def _of_fp8(name: str, weight: torch.Tensor) -> torch.Tensor:
    made = Fp8Quantizer(Fp8QuantizerConfig(packed=True)).quantize(
        Matrix(name, *weight.shape), weight
    )
    assert isinstance(made, GroupedWeight)
    return made.codes.float() * made.scales


def _of_sparse24(name: str, weight: torch.Tensor) -> torch.Tensor:
    made = Sparse24().quantize(Matrix(name.removesuffix(".weight"), *weight.shape), weight)
    return weight if made is None else made.values


# The numbers that a strategy makes of a matrix, whatever it is joined with.
MEANT: dict[str, Callable[[str, torch.Tensor], torch.Tensor]] = {
    "rounds": lambda name, weight: meant(rounded(weight)),
    "fp8": _of_fp8,
    "sparse24": _of_sparse24,
}
# What a scheme takes for a matrix of a layer, and for the head, each of rows and columns.
Bytes = Callable[[int, int], int]
ON_LOAD: dict[str, tuple[StrategyChoice, Bytes, Bytes]] = {
    "fp8": (StrategyChoice("fp8"), lambda n, k: 4 * n * k, lambda n, k: 4 * n * k),
    "fp8 in bytes": (
        StrategyChoice("fp8", {"packed": True}),
        lambda n, k: n * k + 4 * n,
        lambda n, k: n * k + 4 * n,
    ),
    "int4": (
        StrategyChoice("int4"),
        lambda n, k: n * k // 2 + 4 * n * k // 128,
        lambda n, k: 2 * n * k,
    ),
    "int4, the head too": (
        StrategyChoice("int4", {"group_size": 32, "symmetric": True, "head": True}),
        lambda n, k: n * k // 2 + 2 * n * k // 32,
        lambda n, k: n * k // 2 + 2 * n * k // 32,
    ),
    "sparse24": (StrategyChoice("sparse24"), lambda n, k: 2 * n * k, lambda n, k: 2 * n * k),
}


@pytest.fixture
def nano(tmp_path: Path) -> Path:
    """A copy of the embedded model's first layers that may be changed."""
    return Path(shutil.copytree(small(), tmp_path / "nano"))


@pytest.fixture
def tiny(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A checkpoint of the stranger's format."""
    folder = make_checkpoint(tmp_path / "tiny", "llama", max_shard_size="1GB")
    pack(folder)
    return folder


def test_tokens_are_those_of_transformers_with_the_same_numbers(
    engine: Make, tiny: Path, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    ours = engine(tiny, AUTO, cpu_activations="float")
    assert ours.info.strategies["quantizer"] == "nibbles"
    tokens = ours.generate(PROMPT, max_tokens=24, ignore_eos=True)
    dense = make_checkpoint(tmp_path / "dense", "llama", max_shard_size="1GB")
    numbers = pack(dense)
    announce(dense, None)
    save_file(numbers, dense / "model.safetensors", {"format": "pt"})
    assert tokens == theirs(dense, PROMPT, 24)


@pytest.mark.parametrize("name", ["rounds", "fp8", "fp8 in bytes", "sparse24"])
def test_what_is_rounded_while_loading_answers_as_transformers_with_the_same_numbers(
    name: str, engine: Make, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_checkpoint(tmp_path, "llama_biases", max_shard_size="1GB")
    choice = ON_LOAD[name][0] if name in ON_LOAD else StrategyChoice(name)
    ours = engine(folder, choice, cpu_activations="float")
    tokens = ours.generate(PROMPT, max_tokens=24, ignore_eos=True)
    assert len(tokens) == 24
    numbers = {
        name: MEANT[choice.name](name, tensor)
        if tensor.dim() == 2 and "embed" not in name
        else tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(numbers, folder / "model.safetensors", {"format": "pt"})
    assert tokens == theirs(folder, PROMPT, 24)


@pytest.mark.parametrize("scheme", ON_LOAD)
def test_what_else_is_rounded_while_loading_answers_and_tells_what_it_takes(
    engine: Make, scheme: str
) -> None:
    choice, layer, head = ON_LOAD[scheme]
    ours, floats = engine(small(), choice), engine(small())
    matrices = ((640, 384), (384, 384), (2048, 384), (384, 1024))
    norms = 2 * 2 + 1
    table = 2 * 4096 * 384
    assert ours.info.weight_bytes == (
        table + 4 * 384 * norms + 2 * sum(layer(*shape) for shape in matrices) + head(4096, 384)
    )
    assert ours.info.num_parameters == floats.info.num_parameters
    assert len(ours.generate(PROMPT, max_tokens=8, ignore_eos=True)) == 8
    assert ours.core.strategies.identify() != floats.core.strategies.identify()


def test_int8_is_the_embedded_model_in_less_memory(engine: Make) -> None:
    ours = engine(quantizer=INT8)
    floats = engine()
    # Floats are of 16 bits, and so is the embedding of both.
    assert ours.info.weight_bytes < 0.58 * floats.info.weight_bytes
    assert ours.info.num_parameters == floats.info.num_parameters
    (row,) = [row for row in ours.core.strategies.report() if row.kind == "quantizer"]
    assert (row.name, row.state) == ("int8", "active")
    assert row.calls == 4 * 6 + 1 + 1


@pytest.mark.parametrize("quantizer", [INT8, StrategyChoice("int4", {"head": True})])
def test_answers_do_not_depend_on_who_else_is_computed(
    engine: Make, quantizer: StrategyChoice
) -> None:
    prompts = [[1, *range(at, at + 9 + at % 7)] for at in range(100, 108)]
    alone = engine(quantizer=quantizer, prefix_cache=None)
    apart = [alone.generate(prompt, max_tokens=12, ignore_eos=True) for prompt in prompts]
    together = engine(quantizer=quantizer, prefix_cache=None)
    ids = [together.submit(prompt, max_tokens=12, ignore_eos=True)[0] for prompt in prompts]
    answers = together.run()
    assert [answers[i].tokens for i in ids] == apart


def test_what_is_skipped_stays_as_it_is(
    engine: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    rounded = Int8Quantizer.quantize

    def noting(self: Int8Quantizer, matrix: Matrix, weight: torch.Tensor) -> Any:
        asked.append(matrix.name)
        return rounded(self, matrix, weight)

    monkeypatch.setattr(Int8Quantizer, "quantize", noting)
    skip = ["lm_head", "model.layers.[1-5].*", "*.down_proj", "no.such"]
    with caplog.at_level(logging.WARNING):
        engine(quantizer=INT8, quantizer_skip=skip)
    first = "model.layers.0"
    assert asked == [
        f"{first}.self_attn.qkv_proj",
        f"{first}.self_attn.o_proj",
        f"{first}.mlp.gate_up_proj",
    ]
    assert [r.getMessage() for r in caplog.records] == [
        "[quantizer] skip has 'no.such', which matches no matrix"
    ]


def test_routers_of_experts_are_not_rounded(
    engine: Make, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path, "mixtral", max_shard_size="1GB")
    packed = engine(folder, StrategyChoice("int4", {"group_size": 32}))
    assert packed.generate(PROMPT, max_tokens=4, ignore_eos=True)
    ours = engine(folder, INT8)
    (row,) = [row for row in ours.core.strategies.report() if row.kind == "quantizer"]
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    assert row.calls == layers * (2 + 2 * 5) + 1 + 1
    assert ours.generate(PROMPT, max_tokens=4, ignore_eos=True)


def test_engines_of_other_bits_do_not_find_each_others_pages(engine: Make) -> None:
    made = [
        engine(),
        engine(quantizer=AUTO),
        engine(quantizer=INT8),
        engine(quantizer=INT8, quantizer_skip=["lm_head"]),
        engine(quantizer=StrategyChoice("rounds")),
    ]
    names = [one.core.strategies.identify() for one in made]
    assert names[0] == names[1]
    assert len(set(names)) == 4


@pytest.mark.parametrize(
    ("quantizer", "announced", "error", "sentence"),
    [
        (
            None,
            {"quant_method": "nibbles"},
            EngineConfigError,
            "but .quantizer. strategy is none",
        ),
        (
            INT8,
            {"quant_method": "nibbles"},
            EngineConfigError,
            "the weights are quantized already, but",
        ),
        (INT8, {"quant_method": "int8"}, SpecError, "quantizer.int8 reads no checkpoints"),
        (AUTO, {"quant_method": "bits-and-bytes"}, SpecError, "is 'bits-and-bytes', and no instal"),
        (AUTO, {"quant_method": "Nibbles", "bits": 3}, SpecError, "quantization_config.bits must"),
        (AUTO, {"quant_method": 4}, SpecError, "quant_method must be a string, not 4"),
        (AUTO, {}, SpecError, "quant_method must be a string, not None"),
        (
            StrategyChoice("nibbles"),
            None,
            EngineConfigError,
            "config.json has no quantization_config",
        ),
        (StrategyChoice("int9"), None, NotInstalled, "did you mean quantizer.int8"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(
    quantizer: StrategyChoice | None,
    announced: dict[str, Any] | None,
    error: type[Exception],
    sentence: str,
    engine: Make,
    nano: Path,
) -> None:
    announce(nano, announced)
    (nano / "model.safetensors").unlink()
    with pytest.raises(error, match=sentence):
        engine(nano, quantizer)


def test_dummy_weights_of_a_quantized_checkpoint_are_refused(engine: Make, tiny: Path) -> None:
    with pytest.raises(
        EngineConfigError, match="dummy weights of a quantized checkpoint are not supported"
    ):
        engine(tiny, AUTO, dummy_weights=True)


def test_dummy_weights_are_rounded(engine: Make) -> None:
    made = engine(quantizer=INT8, dummy_weights=True)
    assert made.info.strategies["quantizer"] == "int8"
    assert len(made.generate(PROMPT, max_tokens=4, ignore_eos=True)) == 4


def test_numbers_that_are_not_finite_end_the_start(engine: Make, nano: Path) -> None:
    from safetensors.torch import load_file, save_file

    name = "model.layers.1.mlp.down_proj.weight"
    tensors = load_file(nano / "model.safetensors")
    tensors[name][3, 5] = float("nan")
    save_file(tensors, nano / "model.safetensors")
    sentence = r"layers\.1\.mlp\.down_proj: quantizer\.int8: it has numbers that are not finite"
    with pytest.raises(LoadError, match=sentence):
        engine(nano, INT8)


def test_one_in_which_an_engine_ended_is_left_out(engine: Make, tiny: Path) -> None:
    out = engine(quantizer=INT8, quarantined=[["quantizer", "int8"]])
    assert "quantizer" not in out.info.strategies
    assert out.core.strategies.identify() == engine().core.strategies.identify()
    with pytest.raises(
        EngineConfigError, match=r"quantizer\.nibbles is quarantined because an engine crashed"
    ):
        engine(tiny, AUTO, quarantined=[["quantizer", "nibbles"]])


def test_it_is_fixed_while_an_engine_runs(engine: Make) -> None:
    ours = engine(quantizer=INT8)
    ours.core.swaps.start(SwapStrategy(7, "quantizer", []))
    (answer,) = ours.core.swaps.complete_ready()
    assert answer.error == "quantizer is fixed while an engine runs: stored data depends on it"


def test_it_is_closed_with_the_engine(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Int8Quantizer] = []
    monkeypatch.setattr(Int8Quantizer, "close", lambda self: closed.append(self))
    strategies: Strategies = build(None, CATALOG, quantizer=INT8).core.strategies
    assert closed == []
    strategies.close()
    assert len(closed) == 1
