"""Interoperability: published packages read our files, and we read theirs.

Where a package is not installed, what it made is read from the files that ``oracles`` wrote:
autoawq 0.2.9, gptqmodel 7.7.0, compressed_tensors 0.20.0. Those of transformers always run.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils.quantization_config import AwqConfig, FineGrainedFP8Config

from gatewayd_engine.model.weights import dense, validated
from gatewayd_hooks.quantization import Announcement, Matrix, Weight
from gatewayd_quant_awq.strategy import Awq
from gatewayd_quant_compressed_tensors.strategy import CompressedTensors
from gatewayd_quant_fp8.strategy import Fp8Quantizer
from gatewayd_quant_gptq.strategy import Gptq
from tests.plugins.quantized.oracles import (
    HERE,
    NAME,
    PACKS,
    WRITTEN,
    Pack,
    digest,
    published,
    written,
)

READERS: dict[str, Any] = {
    "awq": Awq,
    "gptq": Gptq,
    "compressed-tensors": CompressedTensors,
    "fp8": Fp8Quantizer,
}
TOLD = json.loads((HERE / "written.json").read_text())


def in_type(weight: Weight, dtype: str) -> torch.Tensor:
    numbers: torch.Tensor = dense(weight).to(getattr(torch, dtype))
    return numbers


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_published_code_was_shown(name: str) -> None:
    one, told = written(name), TOLD[name]
    assert digest(one.tensors) == told["tensors"], "write the file anew, with the packages"
    assert digest({"": in_type(one.weight, told["dtype"])}) == told["numbers"]


@pytest.mark.parametrize("name", WRITTEN)
def test_published_code_reads_what_is_written(name: str) -> None:
    one = written(name)
    try:
        numbers = published(name, one)
    except ImportError as error:
        pytest.skip(str(error))
    assert torch.equal(numbers, dense(one.weight).to(numbers.dtype))


def stored(name: str) -> Pack:
    with safe_open(HERE / "packs.safetensors", "pt") as file:
        told = json.loads(file.metadata()["packs"])[name]
        tensors = {
            key.removeprefix(f"{name}/"): file.get_tensor(key)
            for key in file.keys()  # noqa: SIM118 - it is no dict
            if key.startswith(f"{name}/")
        }
    return Pack(told["announced"], tensors, tensors.pop("numbers"), told["by"])


def check(pack: Pack) -> None:
    """Whether our reader takes the announcement and the tensors, and reads the same numbers."""
    scheme = READERS[pack.announced["quant_method"]]().scheme(Announcement(pack.announced, "here"))
    matrix = Matrix(NAME, *pack.numbers.shape)
    needed, optional = scheme.stored(matrix), scheme.optional(matrix)
    assert needed.keys() <= pack.tensors.keys() <= {*needed, *optional}
    weight = validated(matrix, scheme.weight(matrix, pack.tensors.__getitem__))
    assert torch.equal(dense(weight).to(pack.numbers.dtype), pack.numbers)


@pytest.mark.parametrize("name", PACKS)
def test_what_published_code_has_packed_is_read_as_it_reads_it(name: str) -> None:
    check(stored(name))


@pytest.mark.parametrize("name", PACKS)
def test_what_published_code_packs_now_is_read_as_it_reads_it(name: str) -> None:
    try:
        pack = PACKS[name]()
    except ImportError as error:
        pytest.skip(str(error))
    check(pack)


def names_of(*parts: str) -> list[str]:
    """Matrices of both layers of the model below."""
    return [f"model.layers.{index}.{part}" for index in range(2) for part in parts]


@pytest.mark.parametrize("parts", [(), ("mlp.down_proj", "self_attn.k_proj")])
@pytest.mark.parametrize(
    ("writer", "config"), [(Awq, AwqConfig), (Fp8Quantizer, FineGrainedFP8Config)]
)
def test_transformers_takes_the_same_matrices_for_packed(
    writer: Any, config: Any, parts: tuple[str, ...]
) -> None:
    """It converts what is not named, and the head is a matrix as others."""
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 8}
    model = LlamaForCausalLM(
        LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=2, **sizes)
    )
    matrices = {n for n, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    plain = names_of(*parts)
    packed = matrices - {*plain, "lm_head"}
    assert len(packed) == 14 - len(plain)
    read = config(**writer().announce(sorted(packed), plain))
    # As both of its quantizers do.
    skipped = HfQuantizer.get_modules_to_not_convert(
        model, read.modules_to_not_convert, None, add_default_skips=config is AwqConfig
    )
    assert {name for name in matrices if should_convert_module(name, skipped)} == packed


def test_zeros_of_their_own_are_in_the_format_that_gptqmodel_takes() -> None:
    """Its loader refuses them in the first format of other writers; vLLM wants symmetric ones."""
    for name in (name for name in WRITTEN if name.startswith("gptq")):
        announced = written(name).announced
        assert announced["checkpoint_format"] == ("gptq" if announced["sym"] else "gptq_v2")
        assert {"bits", "group_size", "desc_act", "sym", "quant_method"} <= announced.keys()
