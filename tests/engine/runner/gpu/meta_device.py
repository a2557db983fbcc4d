"""Decoders and runners on the meta device, as on a Hopper GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.attention import draft_slots, triton_decode
from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.select import device_attention
from gatewayd_engine.kv import pool
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.assembly.decoder import assemble
from gatewayd_engine.model.assembly.linears import Quantize
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.layout import layout
from gatewayd_engine.model.parts import FusedParts
from gatewayd_engine.model.spec import ModelSpec, read_spec
from gatewayd_engine.runner.gpu.runner import DeviceRunner
from gatewayd_engine.state.running_batch import RunningBatch
from tests.engine.attention import fake_flashinfer
from tests.engine.runner.gpu.no_host_reads import DEVICE, Unread, Waits

MULTIPROCESSORS = 132
LINES, MAX_LEN, PAGE_SIZE = 8, 512, 16
DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": MAX_LEN,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
QWEN3 = {**DENSE, "architectures": ["Qwen3ForCausalLM"]}
GEMMA2 = {
    **DENSE,
    "architectures": ["Gemma2ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 64,
    "sliding_window": 128,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "layer_types": ["sliding_attention", "full_attention"],
}
MIXTRAL = {
    **DENSE,
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
}
GLM4_MOE = {
    **DENSE,
    "architectures": ["Glm4MoeForCausalLM"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}

GPT_OSS = {
    **DENSE,
    "architectures": ["GptOssForCausalLM"],
    "num_hidden_layers": 2,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"],
    "attention_bias": True,
    "swiglu_limit": 7.0,
}

DEEPSEEK = {
    **DENSE,
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "kv_lora_rank": 128,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}


class Shapes:
    """Weights of which there is only the shape."""

    dtype = torch.bfloat16
    num_parameters = 0

    def __init__(self, spec: ModelSpec) -> None:
        self._shapes = layout(spec)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def tensor(self, name: str) -> torch.Tensor:
        return torch.empty(self._shapes[name], dtype=self.dtype, device=DEVICE)

    def float32(self, name: str) -> torch.Tensor:
        return self.tensor(name).float()

    def matrix(self, name: str) -> torch.Tensor:
        return self.tensor(f"{name}.weight")


class _Arrived:
    """No page is on its way."""

    pending = False

    def __init__(self, target: torch.Tensor) -> None:
        """There is nothing to copy."""


class _Wrapper:
    """In the place of FlashInfer's, which plan with numbers."""

    def __init__(self, workspace: torch.Tensor, *args: Any, **named: Any) -> None:
        self._workspace = workspace

    def plan(self, *args: Any, **named: Any) -> None:
        """Nothing follows from it here."""

    def run(
        self,
        q: torch.Tensor,
        kv: tuple[torch.Tensor, ...],
        *,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> None:
        given = (q, *kv, out, self._workspace, *(() if lse is None else (lse,)))
        if {tensor.device for tensor in given} != {DEVICE} or q.shape != out.shape:
            raise Waits("FlashInfer is given other tensors")


def _scaled_mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor, **named: Any) -> None:
    """In the place of torch's, which knows no tensors without numbers."""
    given = (a, b, named["scale_a"], named["scale_b"], out)
    if {tensor.device for tensor in given} != {DEVICE} or out.shape != (len(a), b.shape[1]):
        raise Waits("a product is given other tensors")


def install(monkeypatch: pytest.MonkeyPatch, capture: Unread) -> None:
    """Let tensors without numbers be those of a GPU, with FlashInfer's classes over stand-ins."""
    # Not before: what tests of kernels are told to interpret is told at the first import.
    from triton.runtime.jit import KernelInterface

    launch: Any = lambda kernel, grid: capture.kernel(kernel, grid)  # noqa: E731
    monkeypatch.setattr(KernelInterface, "__getitem__", launch)
    monkeypatch.setattr(
        torch.Tensor, "is_cuda", property(lambda self: self.device == DEVICE), raising=False
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch, "_scaled_mm", _scaled_mm)
    monkeypatch.setattr(pool, "CudaTransfers", _Arrived)
    wrappers = sys.modules["gatewayd_engine.attention.flashinfer.wrappers"]
    for module in (triton_decode, draft_slots, wrappers):
        monkeypatch.setattr(module, "num_multiprocessors", lambda device: MULTIPROCESSORS)
    for name in vars(fake_flashinfer):
        if name.startswith("Batch") and hasattr(wrappers, name):
            monkeypatch.setattr(wrappers, name, _Wrapper)


def decoder_of(
    folder: Path, config: dict[str, Any], kernels: Any, quantize: Quantize | None = None
) -> Decoder:
    """A decoder of a configuration.

    While it is made, numbers of weights may be asked for; the answer is always yes.
    """
    (folder / "config.json").write_text(json.dumps(config))
    spec = read_spec(folder)
    parts = FusedParts(kernels)
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(torch, "equal", lambda one, other: True)
        patch.setattr(torch.Tensor, "__bool__", lambda self: True)
        made = assemble(spec, Shapes(spec), parts, quantize)
    # Steps of two lines have norms and gates within products, where these are possible.
    parts.fusion.lines.add(2)
    return made


def runner_of(
    decoder: Decoder, kernels: Any, *, shares_prefixes: bool, element: torch.dtype | None = None
) -> DeviceRunner:
    """A runner of a decoder."""
    shape = decoder.spec.attention
    kept = KvPool(shape, 64, PAGE_SIZE, decoder.dtype, "meta", element=element)
    append = Append(shape, kept, kernels, decoder.rotation_tables())
    attention = device_attention(
        *(shape, kept, append, kernels, LINES, MAX_LEN),
        shares_prefixes=shares_prefixes,
        sinks=decoder.sinks,
    )
    rows, processors = RunningBatch(LINES, MAX_LEN, PAGE_SIZE), SimpleNamespace()
    return DeviceRunner(decoder, attention, kept, rows, processors, kernels, 64, append)  # type: ignore[arg-type]
