"""humming-kernels stand-in without a GPU: its signatures, and matmuls of its format.

The signatures are compared with the wheel's where that can be imported.
"""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any

import numpy as np
import pytest
import torch

_FLOATS = {"float8e4m3": torch.float8_e4m3fn}


@dataclasses.dataclass(kw_only=True)
class HummingWeightSchema:
    """How a matrix is stored."""

    quant_method: str = "humming"
    b_dtype: Any
    bs_dtype: Any = None
    weight_scale_group_size: int = 0
    weight_scale_group_size_n: int = 0
    weight_scale_type: Any = None
    weight_scale_2_type: Any = None
    has_zero_point: bool = False
    is_fp_zero_point: bool = False
    hadamard_block_size: int = 0

    @property
    def bits(self) -> int:
        return 8 if self.b_dtype in _FLOATS else int(self.b_dtype.removeprefix("uint"))

    def is_compatible_with(
        self, input_schema: HummingInputSchema, param_dtype: torch.dtype | None = None
    ) -> bool:
        is_wide = self.weight_scale_group_size == 0 or self.weight_scale_group_size >= 16
        return is_wide and param_dtype in (torch.bfloat16, torch.float16) and self.bits <= 8


@dataclasses.dataclass(kw_only=True)
class HummingInputSchema:
    """What it is multiplied with."""

    quant_method: str = "humming"
    a_dtype: Any = None
    input_scale_group_size: int = 0
    input_scale_dtype: Any = None
    input_quant_mode: Any = None


class HummingLayer(torch.nn.Module):
    """A matrix, first as it is stored, then transformed."""

    def __init__(
        self,
        shape_n: int,
        shape_k: int,
        weight_config: Any,
        input_config: Any = None,
        pad_n_to_multiple: int = 1,
        pad_k_to_multiple: int = 1,
        num_experts: int | None = None,
        has_bias: bool = False,
        torch_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        assert torch_dtype in (torch.float16, torch.bfloat16)
        assert shape_n % 128 == 0, "on Hopper its tuner has no blocks of fewer rows"
        assert shape_k % 64 == 0
        self.shape_n, self.shape_k = shape_n, shape_k
        self.schema, self.torch_dtype = weight_config, torch_dtype
        bits = self.schema.bits
        groups = shape_k // (self.schema.weight_scale_group_size or shape_k)
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "weight": ((shape_n, shape_k * bits // 32), torch.int32),
            "weight_scale": ((shape_n, groups), torch_dtype),
        }
        if self.schema.has_zero_point:
            shapes["zero_point"] = ((shape_n * bits // 32, groups), torch.int32)
        if has_bias:
            shapes["bias"] = ((shape_n,), torch_dtype)
        for name, (shape, dtype) in shapes.items():
            empty = torch.empty(shape, dtype=dtype)
            setattr(self, name, torch.nn.Parameter(empty, requires_grad=False))
        self.register_buffer("locks", torch.zeros(2048, dtype=torch.int32))
        self._numbers: torch.Tensor | None = None
        self.asked: list[Any] = []

    def load_from_tensors(self, tensors: dict[str, torch.Tensor], prefix: str = "") -> None:
        # As the real one, which does not mind what is missing or left over.
        self.load_state_dict(tensors, strict=False)

    def transform(self) -> None:
        bits, stored = self.schema.bits, dict(self.named_parameters())
        scale = stored["weight_scale"].double()
        if self.schema.b_dtype in _FLOATS:
            codes = stored["weight"].view(_FLOATS[self.schema.b_dtype]).double()
        else:
            codes = torch.from_numpy(unpacked(stored["weight"].numpy(), bits)).double()
            zeros = torch.full_like(scale, 1 << (bits - 1))
            if self.schema.has_zero_point:
                turned = np.ascontiguousarray(stored["zero_point"].numpy().T)
                zeros = torch.from_numpy(unpacked(turned, bits)).double().t()
            codes -= zeros.repeat_interleave(codes.shape[1] // scale.shape[1], 1)
        self._numbers = codes * scale.repeat_interleave(codes.shape[1] // scale.shape[1], 1)

    def forward(
        self,
        inputs: torch.Tensor,
        outputs: torch.Tensor | None = None,
        input_scale: torch.Tensor | None = None,
        input_scale_2: torch.Tensor | None = None,
        sorted_ids: torch.Tensor | None = None,
        expert_ids: torch.Tensor | None = None,
        num_tokens_padded: torch.Tensor | None = None,
        expert_layout: torch.Tensor | None = None,
        top_k: int = 1,
        valid_shape_m: int = 0,
        compute_config: dict[str, Any] | str | None = None,
        tuning_config: Any = None,
        hadamard_block_size: int | None = None,
        use_pdl: bool | None = None,
    ) -> torch.Tensor:
        assert self._numbers is not None, "call transform() before forward()"
        assert inputs.dtype == self.torch_dtype
        assert inputs.is_contiguous()
        assert inputs.numel()
        self.asked.append(json.loads(compute_config) if isinstance(compute_config, str) else None)
        made = torch.stack([self._numbers @ row for row in inputs.double()])
        bias = getattr(self, "bias", None)
        made = (made if bias is None else made + bias.double()).to(self.torch_dtype)
        if outputs is None:
            return made
        assert outputs.is_contiguous()
        assert outputs.shape == made.shape
        assert outputs.dtype == made.dtype
        return outputs.copy_(made)


def unpacked(words: Any, bits: int) -> Any:
    """Codes of words, bit by bit from the lowest: int32 ``[n, w]`` to uint8."""
    single = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
    apart = single.reshape(len(words), -1, bits)
    return np.packbits(apart, axis=2, bitorder="little")[..., 0]


@pytest.fixture
def humming(monkeypatch: pytest.MonkeyPatch) -> None:
    """These, in the place of the library."""
    layer, schema = types.ModuleType("humming.layer"), types.ModuleType("humming.schema")
    layer.__dict__["HummingLayer"] = HummingLayer
    schema.__dict__["HummingWeightSchema"] = HummingWeightSchema
    schema.__dict__["HummingInputSchema"] = HummingInputSchema
    for module in (types.ModuleType("humming"), layer, schema):
        monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
