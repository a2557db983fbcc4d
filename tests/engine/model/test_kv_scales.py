"""KV scales of checkpoints: names and invalid values."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatewayd_engine.model.linears.select_cpu import make_cpu_linear
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.kv_scales import KvScales, scaled_output
from gatewayd_engine.model.loading.loader import read
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.spec import read_spec
from gatewayd_hooks.quantization import StaticWeight

Make = Callable[..., Path]


@pytest.fixture
def opened(make_checkpoint: Make, tmp_path: Path) -> Callable[..., Checkpoint]:
    """A checkpoint of one file, with tensors beside those of the model."""

    def add(**more: torch.Tensor) -> Checkpoint:
        made = make_checkpoint(tmp_path, "llama", max_shard_size="1GB")
        file = made / "model.safetensors"
        names = {f"model.layers.{name.replace('__', '.')}": each for name, each in more.items()}
        save_file({**load_file(file), **names}, file, {"format": "pt"})
        return Checkpoint.open(made, read_spec(made))

    return add


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("self_attn__k_scale", "self_attn__v_scale"),
        ("self_attn__attn__k_scale", "self_attn__attn__v_scale"),
        ("self_attn__k_proj__k_scale", "self_attn__v_proj__v_scale"),
        ("self_attn__k_proj__output_scale", "self_attn__v_proj__output_scale"),
    ],
)
def test_each_has_several_names(key: str, value: str, opened: Callable[..., Checkpoint]) -> None:
    more = {f"1__{key}": torch.tensor(0.5), f"1__{value}": torch.tensor([0.25])}
    more["1__self_attn__q_scale"] = torch.tensor(3.0)
    assert opened(**more).kv_scales(is_plain=True) == {1: KvScales(0.5, 0.25)}


def test_one_is_for_both(opened: Callable[..., Checkpoint]) -> None:
    one = opened(**{"0__self_attn__kv_scale": torch.tensor(2.0).half()})
    assert one.kv_scales(is_plain=True) == {0: KvScales(2.0, 2.0)}
    one = opened(**{"1__self_attn__v_scale": torch.tensor(4.0)})
    assert one.kv_scales(is_plain=True) == {1: KvScales(4.0, 4.0)}


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (torch.ones(2), r"self_attn.k_scale is F32 \[2\]; one float for all heads of a layer"),
        (torch.ones(1, dtype=torch.int32), "k_scale is I32"),
        (torch.tensor(0.0), r"model.safetensors: model.layers.0.self_attn.k_scale is 0.0, and"),
        (torch.tensor(float("inf")), "k_scale is inf"),
    ],
)
def test_what_none_can_be_is_refused(
    tensor: torch.Tensor, sentence: str, opened: Callable[..., Checkpoint]
) -> None:
    checkpoint = opened(**{"0__self_attn__k_scale": tensor})
    with pytest.raises(LoadError, match=sentence):
        checkpoint.kv_scales(is_plain=True)


def test_what_is_not_used_refuses_nothing(
    opened: Callable[..., Checkpoint], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert opened(**{"0__self_attn__q_scale": torch.ones(2)}).kv_scales(is_plain=False) == {}
    assert not caplog.records
    for tensor in (torch.ones(2), torch.tensor(0.0), torch.tensor(-1.0)):
        assert opened(**{"1__self_attn__v_scale": tensor}).kv_scales(is_plain=False) == {}
    assert caplog.text.count("scales of keys and values are not used") == 3


def test_the_output_projection_rounds_what_comes_divided_to_the_same_codes() -> None:
    weight = StaticWeight(torch.randn(24, 16), "e4m3", 0.03)
    x = torch.randn(9, 16)
    other = scaled_output(weight, KvScales(1.0, 4.0))
    assert torch.allclose(
        make_cpu_linear(other)(x / 4), make_cpu_linear(weight)(x), rtol=1e-5, atol=1e-5
    )
    assert isinstance(other, StaticWeight)
    assert other.scale == 0.03 / 4


@pytest.mark.parametrize("name", ["deepseek_v2_biases", "deepseek_v3", "deepseek_v3_biases"])
def test_a_latent_has_one_scale_for_keys_and_values(
    name: str, checkpoint: Callable[[str], Path], our_logits: Callable[..., torch.Tensor]
) -> None:
    folder, scale = checkpoint(name), 8.0
    records: dict[tuple[float, int], torch.Tensor] = {}
    spec, ids = read_spec(folder), torch.arange(3, 40)

    def look(key: float, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        records.setdefault((key, layer), key_value.clone())
        return query.flatten(1)

    logits = []
    for key in (1.0, scale):
        scales = {layer: KvScales(key, 3.0) for layer in range(spec.num_layers)}
        decoder = read(
            Checkpoint.open(folder, spec),
            torch.float32,
            "cpu",
            lambda part: None,
            None,
            None,
            scales,
        )
        logits.append(our_logits(decoder, ids))
        with torch.inference_mode():
            decoder.hidden(ids, torch.arange(len(ids)), partial(look, key))
    torch.testing.assert_close(*logits, atol=5e-5, rtol=1e-4)
    torch.testing.assert_close(records[scale, 0] * scale, records[1.0, 0])
