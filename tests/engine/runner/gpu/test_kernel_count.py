"""Kernel count of a captured decode step: one more launch per layer costs a percent."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.assembly.decoder import assemble
from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.loading.layout import layout
from gatewayd_engine.model.parts import FusedParts
from gatewayd_engine.model.spec import ModelSpec, read_spec
from tests.engine.attention import fake_flashinfer
from tests.engine.runner.gpu import conftest
from tests.engine.runner.gpu.launches import CountedKernels, Launches

LAYERS = 32
LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}


def folder(tmp_path: Path, **changed: Any) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, **changed}))
    return tmp_path


EACH = {"rope_append": LAYERS, "attention": LAYERS, "merge": LAYERS}
ONCE = {"gather": 1, "embedding": 1, "pivots": 1, "draw": 1, "choose": 1}
APART = {"add_rms_norm": 2 * LAYERS + 1, "mm": 4 * LAYERS + 1, "gated": LAYERS}
FUSED = {"norm_mm": 2 * LAYERS, "addmm_": 2 * LAYERS, "add_rms_norm": 1, "mm": 1}


@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
@pytest.mark.parametrize(
    ("is_fused", "kernels_between", "total"), [(False, APART, 327), (True, FUSED, 231)]
)
def test_a_captured_step_of_32_layers_launches_so_many_kernels(
    make_device_engine: Callable[..., Any],
    device_runner: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_fused: bool,
    kernels_between: dict[str, int],
    total: int,
) -> None:
    kernels = CountedKernels(TorchKernels())
    monkeypatch.setattr(conftest, "TorchKernels", lambda: kernels)
    engine = make_device_engine(
        folder(tmp_path, **TINY), dummy_weights=True, dtype="bfloat16", max_running=8, kv_pages=8
    )
    launches = Launches()
    wrapper: Any = fake_flashinfer.BatchDecodeWithPagedKVCacheWrapper
    attend = wrapper.run

    def run(self: Any, *args: Any, **named: Any) -> Any:
        # In graphs FlashInfer splits contexts, and merges what the splits have seen.
        is_split = not self._plan_info.get("disable_split_kv")
        with launches.inside("attention", *["merge"] * is_split):
            return attend(self, *args, **named)

    monkeypatch.setattr(wrapper, "run", run)
    runner = device_runner(engine)
    (step, *_), input_buffers = runner._graphs[4], runner._input_buffers
    input_buffers.clear()
    step.attention.plan(input_buffers.scratch(4))
    if is_fused:
        runner._decoder.layers[0].attention.entry._fusion.lines.add(4)
    kernels.launches = launches
    with torch.inference_mode(), launches:
        step.whole()
    assert launches.counts == Counter({**EACH, **ONCE, **kernels_between})
    assert len(launches.made) == total


class Shapes:
    """Weights of which there is only the shape."""

    dtype = torch.bfloat16

    def __init__(self, spec: ModelSpec) -> None:
        self._shapes = layout(spec)
        self.num_parameters = 0

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def tensor(self, name: str) -> torch.Tensor:
        return torch.empty(self._shapes[name], dtype=self.dtype, device="meta")

    def float32(self, name: str) -> torch.Tensor:
        return self.tensor(name).float()

    def matrix(self, name: str) -> torch.Tensor:
        return self.tensor(f"{name}.weight")


class Attends(RotatingAttend):
    """Rotates, appends, and reads contexts of one length."""

    def __init__(
        self, kernels: Any, spec: ModelSpec, lines: int, context: int, launches: Launches
    ) -> None:
        shape = spec.attention
        self.kv_bytes = lines * context * 2 * shape.num_kv_heads * shape.head_dim * 2
        self._kernels, self._heads, self._launches = kernels, shape.num_heads, launches
        self._pool = torch.empty(9, 1, 2, 16, shape.num_kv_heads, shape.head_dim, device="meta")
        self._pool = self._pool.bfloat16()
        self._table = torch.empty(64, shape.head_dim, device="meta")
        self._at = torch.empty(lines, dtype=torch.int64, device="meta")

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        self._kernels.rope_append(
            heads, self._table, self._at, self._at, self._pool, 0, self._heads
        )
        query = heads[:, : self._heads]
        with self._launches.inside("attention"):
            answer = query.flatten(1)
        self._launches.moves(self.kv_bytes + 2 * query.nbytes)
        return answer


@pytest.mark.parametrize(("lines", "share"), [(1, 1.0008), (32, 1.0218), (256, 1.1187)])
def test_a_step_moves_so_much_for_each_byte_of_weights_and_contexts(
    tmp_path: Path, lines: int, share: float
) -> None:
    spec = read_spec(folder(tmp_path), None)
    kernels = CountedKernels(TorchKernels())
    decoder = assemble(spec, Shapes(spec), FusedParts(kernels))
    launches = Launches()
    attend = Attends(kernels, spec, lines, 256, launches)
    ids = torch.empty(lines, dtype=torch.int64, device="meta")
    kernels.launches = launches
    with torch.inference_mode(), launches:
        decoder.raw_logits(decoder.hidden(ids, ids, attend))
    # The embedding is looked up, not read; the head is another matrix.
    shapes = {name: math.prod(shape) for name, shape in layout(spec).items()}
    weights = 2 * (sum(shapes.values()) - shapes["model.embed_tokens.weight"])
    floor = weights + LAYERS * attend.kv_bytes
    moved = sum(launch.num_bytes for launch in launches.made)
    assert weights == pytest.approx(15.0e9, rel=0.01)
    assert round(moved / floor, 4) == share
