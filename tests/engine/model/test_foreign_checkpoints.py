"""Foreign checkpoints: older writers' leftovers, refused losses, and defaults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatewayd_engine.model.gguf.header import read_header as read_gguf_header
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.loader import read
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.spec import SpecError, read_spec
from gatewayd_hooks.quantization import Announcement
from gatewayd_quant_gguf.config import GgufConfig
from gatewayd_quant_gguf.strategy import Gguf
from tests.engine.gguf_files import Put, convert, entry_of, metadata, written
from tests.engine.model.test_damaged_checkpoints import DOWN, READERS, Folder
from tests.plugins.quantized.format_cases import CASES

Checkpoints = Callable[[str], Path]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_bias_that_the_model_has_not_is_read_over_only_if_it_is_zeros(
    dtype: torch.dtype, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """AutoGPTQ gives every matrix one."""
    folder = Folder(checkpoint("llama"), tmp_path, CASES["gptq"])
    folder.tensors[f"{DOWN}.bias"] = torch.zeros(64, dtype=dtype)
    folder.write()
    assert folder.open().matrix(DOWN)
    folder.tensors[f"{DOWN}.bias"][7] = 0.5
    folder.write()
    with pytest.raises(LoadError, match=rf"{DOWN}\.bias is not all zeros, but the model of"):
        folder.open().matrix(DOWN)


def test_a_bias_that_the_model_has_is_taken(checkpoint: Checkpoints, tmp_path: Path) -> None:
    folder = Folder(checkpoint("llama_biases"), tmp_path, CASES["gptq"])
    folder.write()
    assert f"{DOWN}.bias" in folder.tensors
    read(folder.open(), torch.float32, "cpu", lambda part: None)


@pytest.mark.parametrize("old", ["quantize_config.json", "quant_config.json"])
def test_where_older_writers_said_it_is_named(
    old: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    folder = Folder(checkpoint("llama"), tmp_path, CASES["gptq"])
    folder.write()
    (tmp_path / "config.json").write_text(json.dumps(folder.config))
    for is_there in (False, True):
        if is_there:
            (tmp_path / old).write_text("{}")
        with pytest.raises(LoadError, match="so it looks quantized, but") as found:
            Checkpoint.open(tmp_path, read_spec(tmp_path))
        assert (f"put the contents of {old} there" in str(found.value)) == is_there


def test_an_announcement_has_an_older_name(checkpoint: Checkpoints, tmp_path: Path) -> None:
    folder = Folder(checkpoint("llama"), tmp_path, CASES["packed"])
    folder.write()
    config = {**folder.config, "quantization_config": None, "compression_config": folder.announced}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_spec(tmp_path)
    assert spec.quantization == Announcement(folder.announced, "config.json: compression_config")
    assert folder.open().matrix(DOWN)


def test_a_sentence_of_a_long_announcement_is_short(
    checkpoint: Checkpoints, tmp_path: Path
) -> None:
    folder = Folder(checkpoint("llama"), tmp_path, CASES["packed"])
    del folder.tensors[f"{DOWN}.weight_scale"]
    inner: dict[str, Any] = {"deep\n": 1}
    for _ in range(400):
        inner = {"in": inner}
    folder.announced["meta"] = {"x" * 9000: 3, **{f"n{i}": i for i in range(5000)}, **inner}
    folder.write()
    with pytest.raises(LoadError, match=f"missing tensors: {DOWN}.weight_scale") as refusal:
        folder.open()
    assert len(str(refusal.value)) < 1500
    assert str(refusal.value).isprintable()


def test_a_bias_of_blocks_is_not_taken_for_its_matrix(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_checkpoint(tmp_path / "s", "llama", num_hidden_layers=1, max_shard_size="1GB")
    folder = tmp_path / "gguf"
    folder.mkdir()
    convert(source, folder, "llama", ("Q8_0",))
    path = folder / "model.gguf"
    data, tensors = path.read_bytes(), read_gguf_header(path).tensors
    puts = [
        Put(name, each.shape, each.type, data[each.begin : each.begin + each.nbytes])
        for name, each in tensors.items()
    ]
    facts = metadata("llama", json.loads((folder / "config.json").read_text()))
    entries = [entry_of(key, fact) for key, fact in facts.items() if fact is not None]
    assert tensors["blk.0.attn_q.weight"].type == "Q8_0"
    bias = Put("blk.0.attn_q.bias", (64,), "Q8_0", b"1" * 68)
    path.write_bytes(written(entries, [bias, *puts]))
    spec = read_spec(folder)
    assert spec.quantization is not None
    scheme = Gguf(GgufConfig()).scheme
    with pytest.raises(ValueError, match=r"q_proj\.bias"):
        Checkpoint.open(folder, spec, scheme(spec.quantization))


_NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 5, 7, 31, 33, 96, 97, 2**31, 2**53, 2**63, 2**64])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
@pytest.mark.parametrize(
    "name", ["awq", "gptq with an order", "packed with zeros", "fp8 in blocks"]
)
def test_whatever_is_changed_it_is_read_or_refused_in_a_sentence(
    name: str, data: st.DataObject, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """Numbers of the model, tensors of other shapes or types, and bytes anywhere in a file."""
    folder = Folder(checkpoint("llama"), tmp_path, CASES[name])
    for _ in range(data.draw(st.integers(0, 2))):
        key = data.draw(
            st.sampled_from(("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"))
        )
        folder.config[key] = data.draw(_NUMBERS)
    for _ in range(data.draw(st.integers(0, 2))):
        full = data.draw(st.sampled_from(sorted(folder.tensors)))
        tensor = folder.tensors[full]
        shape = data.draw(st.lists(st.sampled_from([0, 1, 3, 8, 64, 96]), max_size=3))
        kind = data.draw(st.sampled_from([tensor.dtype, torch.int32, torch.float32, torch.uint8]))
        folder.tensors[full] = torch.zeros(shape, dtype=kind)
    folder.write()
    path = data.draw(st.sampled_from(sorted(tmp_path.glob("*.safetensors"))))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, min(len(content) - 1, 4000)))
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    sentence = refusal(folder)
    assert len(sentence) < 3000
    assert not sentence or sentence.isprintable()


def refusal(folder: Folder) -> str:
    """Why a checkpoint is not read; nothing if it is."""
    try:
        spec = read_spec(folder.path)
        assert spec.quantization is not None
        method = str(spec.quantization.values["quant_method"]).replace("-", "_")
        scheme = READERS[method]().scheme(spec.quantization)
        checkpoint = Checkpoint.open(folder.path, spec, scheme)
        read(checkpoint, torch.float32, "cpu", lambda part: None)
    except (LoadError, SpecError) as error:
        return str(error)
    return ""
