"""Layer by layer quantization: hidden states equal transformers'; scale folding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from transformers import AutoModelForCausalLM

from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.offline.quantize.activation_stats import ActivationStats, InputsCollected
from gatewayd_engine.offline.quantize.calibration_layers import fit
from gatewayd_engine.offline.quantize.input_groups import (
    InputGroup,
    input_groups,
    layer_matrices,
    stays_float,
)
from gatewayd_engine.offline.quantize.layers import Layers, LayerTensors
from gatewayd_engine.offline.quantize.quantizer import CheckpointQuantizer
from gatewayd_engine.offline.quantize.scale_folding import Folding

IDS = torch.randint(2, 320, (60,), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def source(checkpoint: Callable[[str], Path], architecture: str) -> Checkpoint:
    folder = checkpoint(architecture)
    return Checkpoint.open(folder, read_spec(folder, len(IDS)))


def places_of(source: Checkpoint, index: int) -> list[InputGroup]:
    matrices = layer_matrices(source.shapes, index)
    packed = {matrix.name for matrix in matrices if not stays_float(matrix)}
    return list(input_groups(source.spec, source.shapes, index, packed))


@torch.inference_mode()
def test_layers_are_those_of_transformers(source: Checkpoint) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        source.folder, dtype=torch.float32, attn_implementation="eager"
    )
    theirs = model(IDS[None], output_hidden_states=True).hidden_states
    layers = Layers(source)
    stream = layers.embedded(IDS)
    # The last of theirs is behind the norm.
    for index in range(source.spec.num_layers - 1):
        torch.testing.assert_close(stream, theirs[index][0], rtol=1e-3, atol=2e-3)
        stream = layers.open(index, LayerTensors(source))(stream)
    torch.testing.assert_close(stream, theirs[source.spec.num_layers - 1][0], rtol=1e-3, atol=2e-3)


@torch.inference_mode()
def test_every_matrix_to_quantize_is_at_one_place_that_is_seen(source: Checkpoint) -> None:
    layers = Layers(source)
    for index in range(source.spec.num_layers):
        found = places_of(source, index)
        names = [matrix.name for place in found for matrix in place.matrices]
        wanted = [m.name for m in layer_matrices(source.shapes, index) if not stays_float(m)]
        assert sorted(names) == sorted(wanted)
        seen = ActivationStats([place.name for place in found], len(IDS))
        stream = layers.embedded(IDS)
        layers.open(index, LayerTensors(source), seen)(stream)
        moe = source.spec.moe
        for place in found:
            count = seen.inputs[place.name].count
            if ".experts." not in place.name:
                assert count == len(IDS)
                assert place.matrices[0].columns == seen.inputs[place.name].gram.shape[0]
        if moe is not None and moe.layers[index]:
            counts = [seen.inputs[place.name].count for place in found if ".experts." in place.name]
            assert sum(counts) == 2 * moe.top_k * len(IDS)


@torch.inference_mode()
def test_a_layer_in_parts_computes_what_it_does_as_a_whole(source: Checkpoint) -> None:
    layers, quantizer = Layers(source), SimpleNamespace(calibrates=SimpleNamespace(propagates=True))
    writer = cast("CheckpointQuantizer", quantizer)
    stream = layers.embedded(IDS)
    for index in range(source.spec.num_layers):
        whole = layers.open(index, LayerTensors(source))(stream)
        # Nothing is to be quantized: attention and experts run one after the other.
        made = fit(layers, writer, index, [], [stream.clone()], lambda part: None)
        torch.testing.assert_close(torch.cat(made.stream), whole, rtol=1e-4, atol=1e-4)
        stream = whole


@torch.inference_mode()
def test_what_is_divided_before_is_multiplied_behind(source: Checkpoint) -> None:
    """With any factors a layer computes what it did, and a norm has a weight that files hold."""
    layers, generator = Layers(source), torch.Generator().manual_seed(5)
    stream = layers.embedded(IDS)
    for index in range(source.spec.num_layers):
        tensors = LayerTensors(source)
        before = layers.open(index, tensors)(stream)
        folded = 0
        for place in reversed(places_of(source, index)):
            if place.before is None:
                continue
            folding = Folding(source, place.before, tensors)
            wanted = torch.rand(place.matrices[0].columns, generator=generator) * 3 + 0.2
            factors = folding.foldable(wanted)
            assert factors.shape == wanted.shape
            assert (factors > 0).all()
            assert not torch.equal(factors, torch.ones_like(factors))
            for matrix in place.matrices:
                weight = tensors.tensor(f"{matrix.name}.weight")
                tensors.replace(f"{matrix.name}.weight", weight * factors)
            folding.apply(factors)
            folded += 1
        after = layers.open(index, tensors)(stream)
        torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)
        assert folded


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_norms_of_bfloat16_keep_their_factors_exactly(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint(name), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    with closing(Checkpoint.open(tmp_path, read_spec(tmp_path))) as source:
        tensors = LayerTensors(source)
        place = places_of(source, 0)[0]
        assert place.before is not None
        folding = Folding(source, place.before, tensors)
        offset = 1.0 if name == "gemma2" else 0.0
        whole = tensors.tensor(place.before.name) + offset
        wanted = torch.rand(64, generator=torch.Generator().manual_seed(1)) * 3 + 0.2
        factors = folding.foldable(wanted)
        stored = folding.apply(factors)
        assert stored is not None
        assert stored.dtype == torch.bfloat16
        product = (stored.float() + offset) * factors
        torch.testing.assert_close(product, whole, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(factors, wanted, rtol=0.3 if offset else 0.01, atol=0)


@torch.inference_mode()
def test_a_matrix_that_stays_is_not_divided_with_the_others(
    checkpoint: Callable[[str], Path],
) -> None:
    folder = checkpoint("llama")
    source = Checkpoint.open(folder, read_spec(folder))
    packed = {m.name for m in layer_matrices(source.shapes, 0)}
    left = "model.layers.0.self_attn.v_proj"
    found = {p.name: p for p in input_groups(source.spec, source.shapes, 0, packed - {left})}
    assert found["model.layers.0.self_attn.qkv_proj"].before is None
    assert len(found["model.layers.0.self_attn.qkv_proj"].matrices) == 2
    assert found["model.layers.0.self_attn.o_proj"].before is None
    assert found["model.layers.0.mlp.down_proj"].before is not None


@torch.inference_mode()
def test_rows_that_are_kept_are_spread_and_the_gram_is_of_all() -> None:
    seen = ActivationStats(["m"], 5000, ends=True)
    x = torch.randn(5000, 8, generator=torch.Generator().manual_seed(2))
    for part in torch.split(x, [7, 93, 3000, 1900]):
        with pytest.raises(InputsCollected):
            seen("m", part)
    seen("other", x)
    inputs = seen.inputs["m"]
    torch.testing.assert_close(inputs.rows, x[::2])
    torch.testing.assert_close(
        inputs.gram, x.double().t() @ x.double() / 5000, rtol=1e-4, atol=1e-5
    )
