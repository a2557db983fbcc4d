"""Checkpoints whose weights are floats of 8 bits, with scales in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gatewayd_hooks.quantization import GroupedWeight, Stored
from gatewayd_hooks.quantized import Fields, finite

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Announcement, Matrix, QuantizerResources

_BLOCKS = "weight_block_size"
_KNOWN = (
    *("quant_method", "activation_scheme", _BLOCKS, "modules_to_not_convert", "ignored_layers"),
    *("fmt", "scale_fmt", "kv_cache_scheme", "dequantize"),
    "is_checkpoint_fp8_serialized",
)
_FLOATS = ("F32", "BF16", "F16")
_SCALARS = ((), (1,))


class Fp8:
    """Reads 8-bit floats."""

    def open(self, resources: QuantizerResources) -> None:
        """The model does not matter here."""

    def close(self) -> None:
        """Nothing to give back."""

    def scheme(self, announced: Announcement) -> Fp8Scheme:
        """See ``Reads``.

        Raises:
            ValueError: other floats, blocks or scales than those known.
        """
        fields = Fields(announced)
        fields.tell_unknown(_KNOWN)
        fields.refuse_set("kv_cache_scheme")
        fields.one_of("is_checkpoint_fp8_serialized", (True,), True)
        fields.one_of("activation_scheme", ("dynamic", "static"), "dynamic")
        fields.one_of("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
        fields.one_of("scale_fmt", ("float", "ue8m0", None), None)
        return Fp8Scheme(
            # Who writes the field, be it null, calls scales "inv", though they multiply, too.
            scales="weight_scale_inv" if _BLOCKS in fields else "weight_scale",
            block=fields.sizes(_BLOCKS),
            plain=fields.names("modules_to_not_convert") + fields.names("ignored_layers"),
        )


@dataclass(frozen=True, slots=True)
class Fp8Scheme:
    """How a checkpoint stores its matrices.

    Attributes:
        scales: what they are called.
        block: rows and columns that share one; None for one of a matrix, or one of each row.
        plain: names of matrices, or of what they are in, that are stored as other floats.
    """

    scales: str
    block: tuple[int, int] | None
    plain: tuple[str, ...]

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """See ``Scheme``: matrices of layers are of 8 bits, but for routers of experts."""
        name = matrix.name
        is_plain = any(_has(name, part) for part in self.plain)
        if is_plain or ".layers." not in name or name.endswith(".gate"):
            return None
        shapes: tuple[tuple[int, ...], ...] = (*_SCALARS, (matrix.rows, 1))
        if self.block is not None:
            rows, columns = self.block
            shapes = ((-(-matrix.rows // rows), -(-matrix.columns // columns)),)
        return {
            self.scales: tuple(Stored(dtype, shape) for shape in shapes for dtype in _FLOATS),
            "weight": (Stored("F8_E4M3", (matrix.rows, matrix.columns)),),
        }

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """See ``Scheme``: what inputs were to be multiplied with."""
        forms = tuple(Stored(dtype, shape) for shape in _SCALARS for dtype in _FLOATS)
        return {"input_scale": forms, "activation_scale": forms}

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> GroupedWeight:
        """``code * scale``; see ``Scheme``."""
        scales, group_of = finite(self.scales, take(self.scales)), None
        if self.block is None:
            scales = scales.reshape(-1, 1).expand(matrix.rows, 1)
        else:
            rows, columns = self.block
            scales = scales.repeat_interleave(min(rows, matrix.rows), 0)[: matrix.rows]
            if matrix.columns % columns and scales.shape[1] > 1:
                group_of = torch.arange(matrix.columns, dtype=torch.int32) // columns
        codes = take("weight")
        if bool((codes.view(torch.uint8) & 127 == 127).any()):
            raise ValueError("weight holds a NaN")
        # Inputs are rounded row by row: of what "static" says, a scale for all of them, the better.
        made = GroupedWeight(codes, scales.contiguous(), group_of=group_of)
        return made._replace(activations="e4m3") if self.block is None else made


def _has(name: str, part: str) -> bool:
    """Whether a matrix has a name, begins with it, or ends with it, at a dot."""
    return name == part or name.startswith(f"{part}.") or name.endswith(f".{part}")
