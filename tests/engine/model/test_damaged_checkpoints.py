"""Damaged quantized checkpoints: one sentence with file and field, without a read."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.loading.tensor_sources import SafetensorsSource
from gatewayd_engine.model.spec import read_spec
from gatewayd_hooks.quantization import Reads
from gatewayd_quant_awq.strategy import Awq
from gatewayd_quant_compressed_tensors.strategy import CompressedTensors
from gatewayd_quant_fp8.config import Fp8QuantizerConfig
from gatewayd_quant_fp8.strategy import Fp8Quantizer
from gatewayd_quant_gptq.strategy import Gptq
from tests.plugins.quantized.format_cases import CASES, Case

READERS: dict[str, Callable[[], Any]] = {
    "awq": Awq,
    "gptq": Gptq,
    "compressed_tensors": CompressedTensors,
    "fp8": lambda: Fp8Quantizer(Fp8QuantizerConfig()),
}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
LAYERS = 2
DOWN = "model.layers.1.mlp.down_proj"
WHERE = "config.json: quantization_config"
Tensors = dict[str, torch.Tensor]


@functools.cache
def floats(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """The configuration of a checkpoint without its first layer, and its tensors."""
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": LAYERS}
    tensors: Tensors = {}
    for shard in folder.glob("*.safetensors"):
        tensors |= load_file(shard)
    return config, {name: each for name, each in tensors.items() if ".layers.2." not in name}


class Folder:
    """A checkpoint in two shards, to be damaged; the last layer is in the second.

    Args:
        plain: one of floats, of the same model.
        path: where to write.
        case: its format.
    """

    def __init__(self, plain: Path, path: Path, case: Case) -> None:
        self.path = path
        config, tensors = floats(plain)
        self.config = copy.deepcopy(config)
        self.announced: dict[str, Any] = copy.deepcopy(dict(case.announced))
        self.tensors: Tensors = {}
        for name, tensor in tensors.items():
            stem = name.removesuffix(".weight")
            if tensor.dim() == 2 and ".layers." in name:
                made = case.tensors(*tensor.shape)
                self.tensors |= {f"{stem}.{suffix}": each for suffix, each in made.items()}
            else:
                self.tensors[name] = tensor

    def write(self) -> None:
        """What ``open`` reads."""
        shards: dict[str, Tensors] = {FIRST: {}, SECOND: {}}
        homes = {}
        for name, tensor in self.tensors.items():
            homes[name] = SECOND if ".layers.1." in name else FIRST
            shards[homes[name]][name] = tensor.clone()
        for name, tensors in shards.items():
            save_file(tensors, self.path / name)
        index = json.dumps({"weight_map": homes})
        (self.path / "model.safetensors.index.json").write_text(index)
        config = {**self.config, "quantization_config": self.announced}
        (self.path / "config.json").write_text(json.dumps(config))

    def open(self) -> Checkpoint:
        """Look at its headers."""
        spec = read_spec(self.path)
        assert spec.quantization is not None
        reader = READERS[str(self.announced["quant_method"]).replace("-", "_")]()
        assert isinstance(reader, Reads)
        return Checkpoint.open(self.path, spec, reader.scheme(spec.quantization))


Make = Callable[[str], Folder]


@pytest.fixture
def make(checkpoint: Callable[[str], Path], tmp_path: Path) -> Make:
    """A checkpoint of a case, not yet written."""
    return lambda name: Folder(checkpoint("llama"), tmp_path, CASES[name])


def refused(folder: Folder, *parts: str) -> None:
    """It is refused in one sentence with these parts, before any tensor is read."""
    folder.write()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SafetensorsSource, "read", lambda self, name: pytest.fail("it was read"))
        with pytest.raises(ValueError, match=r".") as refusal:
            folder.open()
    sentence = str(refusal.value)
    for part in parts:
        assert part in sentence, sentence
    assert "\n" not in sentence


# Of each format: its case, its scales and its codes.
FORMATS = (
    ("awq", "scales", "qweight"),
    ("gptq", "scales", "qweight"),
    ("gptq_v2 with an order", "scales", "qweight"),
    ("packed with zeros", "weight_scale", "weight_packed"),
    ("packed with an order", "weight_scale", "weight_packed"),
    ("integers with zeros", "weight_scale", "weight"),
    ("floats in blocks", "weight_scale", "weight"),
    ("floats of 4 bits", "weight_global_scale", "weight_packed"),
    ("fp8", "weight_scale", "weight"),
    ("fp8 in blocks", "weight_scale_inv", "weight"),
)
EVERY = pytest.mark.parametrize(("name", "scales", "codes"), FORMATS)


@EVERY
def test_a_sound_one_is_read(name: str, scales: str, codes: str, make: Make) -> None:
    folder = make(name)
    folder.write()
    checkpoint = folder.open()
    for matrix in (DOWN, "model.layers.0.self_attn.q_proj"):
        assert not isinstance(checkpoint.matrix(matrix), type(None))


@EVERY
def test_missing_tensors_are_named(name: str, scales: str, codes: str, make: Make) -> None:
    for suffix in (scales, codes):
        folder = make(name)
        del folder.tensors[f"{DOWN}.{suffix}"]
        refused(folder, f"missing tensors: {DOWN}.{suffix}", WHERE)


@EVERY
def test_wrong_types_are_named(name: str, scales: str, codes: str, make: Make) -> None:
    for suffix in (scales, codes):
        folder = make(name)
        full = f"{DOWN}.{suffix}"
        folder.tensors[full] = torch.zeros(folder.tensors[full].shape, dtype=torch.int16)
        refused(folder, f"{SECOND}: {full} holds I16; supported are", WHERE)


@EVERY
def test_wrong_shapes_are_named(name: str, scales: str, codes: str, make: Make) -> None:
    for suffix in (scales, codes):
        folder = make(name)
        full = f"{DOWN}.{suffix}"
        dtype = folder.tensors[full].dtype
        folder.tensors[full] = torch.zeros((3, 5), dtype=torch.float32).to(dtype)
        refused(folder, f"{SECOND}: {full} is ", "[3, 5], not", WHERE)


@EVERY
def test_a_cut_shard_is_named(name: str, scales: str, codes: str, make: Make) -> None:
    folder = make(name)
    folder.write()
    path = folder.path / SECOND
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        LoadError, match=rf"{SECOND} is not a whole .* 100 bytes .* it is truncated"
    ):
        folder.open()


@EVERY
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_scale_that_is_not_finite_is_named(
    value: str, name: str, scales: str, codes: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(name)
    folder.tensors[f"{DOWN}.{scales}"].view(-1)[-1] = float(value)
    folder.write()
    checkpoint = folder.open()
    stored = SafetensorsSource.read

    def guarded(self: SafetensorsSource, full: str) -> torch.Tensor:
        assert not full.endswith(codes), "the codes were read"
        return stored(self, full)

    monkeypatch.setattr(SafetensorsSource, "read", guarded)
    with pytest.raises(LoadError, match=rf"^{SECOND}: {DOWN}: {scales}\[.*\] is {value}, which no"):
        checkpoint.matrix(DOWN)


@pytest.mark.parametrize("value", [-1, 3, 2**31 - 1])
@pytest.mark.parametrize(
    ("name", "index"),
    [("gptq with an order", "g_idx"), ("packed with an order", "weight_g_idx")],
)
def test_a_group_that_is_not_there_is_named(name: str, index: str, value: int, make: Make) -> None:
    folder = make(name)
    folder.tensors[f"{DOWN}.{index}"][5] = value
    folder.write()
    sentence = rf"^{SECOND}: {DOWN}: {index}\[5\] is {value}; there are 3 groups"
    with pytest.raises(LoadError, match=sentence):
        folder.open().matrix(DOWN)


def test_a_shape_of_another_matrix_is_named(make: Make) -> None:
    folder = make("packed with zeros")
    folder.tensors[f"{DOWN}.weight_shape"][1] = 95
    folder.write()
    with pytest.raises(LoadError, match=rf"{DOWN}: weight_shape is \[64, 95\], not \[64, 96\]"):
        folder.open().matrix(DOWN)


@pytest.mark.parametrize("name", ["floats", "fp8"])
def test_codes_that_are_no_numbers_are_named(name: str, make: Make) -> None:
    folder = make(name)
    folder.tensors[f"{DOWN}.weight"].view(torch.uint8)[3, 4] = 255
    folder.write()
    with pytest.raises(LoadError, match=rf"^{SECOND}: {DOWN}: weight contains a NaN"):
        folder.open().matrix(DOWN)


INT8_KV = {"num_bits": 8, "type": "int"}
GROUPS = "config_groups.group_0.weights"


@pytest.mark.parametrize(
    ("name", "path", "value", "parts"),
    [
        (
            "awq",
            "group_size",
            96,
            [".group_size is 96; this format knows 16, 32, 64, 128, 256 and"],
        ),
        ("awq", "group_size", "32", [".group_size is '32'; this format knows"]),
        (
            "awq",
            "group_size",
            64,
            [f"{DOWN.replace('1', '0')} has 96 columns, which is no multiple"],
        ),
        ("awq", "group_size", 16, [FIRST, "qzeros is I32 [2, 8], not I32 [4, 8]", "group_size 16"]),
        ("awq", "bits", 3, [".bits is 3; this format knows 4"]),
        ("awq", "bits", True, [".bits is True; this format knows 4"]),
        ("awq", "version", "gemv", [".version is 'gemv'; this format knows gemm"]),
        ("awq", "version", None, [".version is None; this format knows gemm"]),
        ("awq", "zero_point", False, [".zero_point is False; this format knows true"]),
        ("awq", "modules_to_not_convert", "lm_head", [".modules_to_not_convert is 'lm_head', not"]),
        ("gptq", "group_size", 96, [".group_size is 96; this format knows"]),
        ("gptq", "group_size", 64, ["qzeros is I32 [2, 8], not I32 [1, 8]", "group_size 64"]),
        ("gptq", "bits", 3, [".bits is 3; this format knows 4 and 8"]),
        ("gptq", "bits", 8, [FIRST, "qweight is I32 [8, 64], not I32 [16, 64]"]),
        ("gptq", "desc_act", True, ["missing tensors: model.layers.0.self_attn.q_proj.g_idx"]),
        ("gptq", "desc_act", "yes", [".desc_act is 'yes'; this format knows true and false"]),
        ("gptq", "checkpoint_format", "marlin", [".checkpoint_format is 'marlin'; this format"]),
        ("gptq", "is_marlin_format", True, [".is_marlin_format is True, which is not supported"]),
        ("gptq", "dynamic", {"-:.*": {}}, [".dynamic is {", "which is not supported"]),
        (
            "packed with zeros",
            f"{GROUPS}.group_size",
            16,
            [FIRST, "weight_scale is F16 [64, 2], not F16 [64, 4]"],
        ),
        (
            "packed with zeros",
            f"{GROUPS}.group_size",
            0,
            ["weights.group_size is 0, but strategy is"],
        ),
        (
            "packed with zeros",
            f"{GROUPS}.num_bits",
            2,
            ["weights.num_bits is 2; this format knows 4"],
        ),
        ("packed with zeros", f"{GROUPS}.type", "float", ["weights.type is 'float'; this format"]),
        ("packed with zeros", f"{GROUPS}.strategy", "token", ["weights.strategy is 'token'; this"]),
        ("packed with zeros", f"{GROUPS}.symmetric", True, ["unexpected tensors:", "zero_point"]),
        ("packed with zeros", f"{GROUPS}.actorder", "other", ["weights.actorder is 'other'; this"]),
        ("packed with zeros", "format", "nvfp4-pack-quantized", ["weights.type is 'int'; this"]),
        ("floats of 4 bits", f"{GROUPS}.group_size", 32, ["weights.group_size is 32; this format"]),
        ("packed with zeros", "format", "mixed-precision", [".group_0.format is missing, but the"]),
        ("packed with zeros", "format", "marlin-24", [".format is 'marlin-24'; this format knows"]),
        ("packed with zeros", "config_groups", None, [".config_groups is missing"]),
        ("packed with zeros", "config_groups.group_0", 3, [".config_groups.group_0 is 3, not an"]),
        (
            "packed with zeros",
            "config_groups.group_0.weights",
            None,
            [".group_0.weights is missing"],
        ),
        ("packed with zeros", "ignore", ["re:("], [".ignore has the pattern '(': "]),
        (
            "packed with zeros",
            "ignore",
            ["re:(a+)+b"],
            [".ignore has the pattern '(a+)+b'; patterns"],
        ),
        ("packed with zeros", "kv_cache_scheme", {"num_bits": 4}, [".num_bits is 4; this format"]),
        (
            "packed with zeros",
            "kv_cache_scheme",
            INT8_KV,
            [".type is 'int'; this format knows flo"],
        ),
        ("fp8 in blocks", "kv_cache_scheme", "auto", [".kv_cache_scheme is 'auto', not an object"]),
        ("floats in blocks", f"{GROUPS}.block_structure", [32, 48], [FIRST, "not F32 [2, 2]"]),
        (
            "floats in blocks",
            f"{GROUPS}.block_structure",
            [32, 0],
            [".block_structure is [32, 0], not"],
        ),
        ("floats in blocks", f"{GROUPS}.num_bits", 4, [".num_bits is 4; this format knows 8"]),
        (
            "fp8 in blocks",
            "weight_block_size",
            [32, -1],
            [".weight_block_size is [32, -1], not two"],
        ),
        (
            "fp8 in blocks",
            "weight_block_size",
            [32, 48],
            [FIRST, "weight_scale_inv is F32 [2, 3], not"],
        ),
        ("fp8 in blocks", "fmt", "e5m2", [".fmt is 'e5m2'; this format knows e4m3"]),
        ("fp8 in blocks", "activation_scheme", "other", [".activation_scheme is 'other'; this"]),
    ],
)
def test_a_wrong_field_is_named(
    name: str, path: str, value: Any, parts: list[str], make: Make
) -> None:
    folder = make(name)
    *outer, last = path.split(".")
    at = folder.announced
    for key in outer:
        at = at[key]
    at[last] = value
    refused(folder, "quantization_config", *parts)


@pytest.mark.parametrize(
    ("name", "field"), [("awq", "bits"), ("gptq", "group_size"), ("packed", "format")]
)
def test_a_missing_field_is_named(name: str, field: str, make: Make) -> None:
    folder = make(name)
    del folder.announced[field]
    refused(folder, f"{WHERE}.{field} is missing; this format knows")


def test_layers_may_be_of_floats_in_part(make: Make, checkpoint: Callable[[str], Path]) -> None:
    """By a part of a name, by a pattern, by a name in full, and with biases that nobody has."""
    _, plain = floats(checkpoint("llama"))
    for name, field, value in (
        ("awq", "modules_to_not_convert", ["down_proj"]),
        ("gptq", "modules_in_block_to_quantize", [["self_attn.q_proj"], ["mlp.up_proj"]]),
        ("integers", "ignore", ["lm_head", "re:.*down_proj$"]),
        ("fp8", "modules_to_not_convert", ["model.layers.1"]),
    ):
        folder = make(name)
        folder.announced[field] = value
        for stem in {
            full.removesuffix(".weight") for full in plain if full.endswith("_proj.weight")
        }:
            if is_plain(name, stem):
                old = [full for full in folder.tensors if full.startswith(f"{stem}.")]
                for full in old:
                    del folder.tensors[full]
                folder.tensors[f"{stem}.weight"] = plain[f"{stem}.weight"]
            elif name == "gptq":
                folder.tensors[f"{stem}.bias"] = torch.zeros(len(plain[f"{stem}.weight"])).half()
        folder.write()
        assert torch.equal(torch.Tensor(folder.open().matrix(DOWN)), plain[f"{DOWN}.weight"])


def is_plain(case: str, stem: str) -> bool:
    """Which matrices the test above keeps as floats."""
    if case == "gptq":
        return not re.search(r"(self_attn\.q_proj|mlp\.up_proj)$", stem)
    return ".layers.1." in stem if case == "fp8" else stem.endswith("down_proj")
