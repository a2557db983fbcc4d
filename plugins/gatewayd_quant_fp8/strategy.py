"""FP8 weights: storage layouts of checkpoints, and quantization of floats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gatewayd_hooks.helpers.quantized import Fields, finite, weighs_experts
from gatewayd_hooks.quantization import GroupedWeight, StaticWeight, Stored
from gatewayd_quant_fp8 import writing
from gatewayd_quant_fp8.config import Fp8QuantizerConfig

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Announcement, Matrix, QuantizerResources, Weight

_BLOCKS = "weight_block_size"
_HEAD = "lm_head"
_KNOWN = (
    *("quant_method", "activation_scheme", _BLOCKS, "modules_to_not_convert", "ignored_layers"),
    *("fmt", "scale_fmt", "kv_cache_scheme", "dequantize"),
    "is_checkpoint_fp8_serialized",
)
_INPUT_SCALES = ("input_scale", "activation_scale")
"""Names in vLLM and in transformers."""
_FLOATS = ("F32", "BF16", "F16")
_SCALARS = ((), (1,))
_ONE = tuple(Stored(dtype, shape) for shape in _SCALARS for dtype in _FLOATS)
_LARGEST = 448
_LEAST = torch.finfo(torch.float32).tiny
_BLOCK = 1 << 20
"""Numbers converted at once, so that temporaries stay small."""


class Fp8Quantizer:
    """Reads and writes FP8 checkpoints, and quantizes with a scale for each row.

    Args:
        config: its settings.
    """

    def __init__(self, config: Fp8QuantizerConfig | None = None) -> None:
        config = config or Fp8QuantizerConfig()
        self._is_packed = config.packed
        self._scales = config.scales
        self._folder: Path | None = None
        self._written = "tensor" if config.scales == "auto" else config.scales
        self._is_dense = False

    def open(self, resources: QuantizerResources) -> None:
        """Read the folder, and whether to dequantize: CPUs have no FP8 matmul."""
        self._is_dense = resources.device == "cpu" and not self._is_packed
        self._folder = Path(resources.folder)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def scheme(self, announced: Announcement) -> Fp8Scheme:
        """See ``Reads``.

        Raises:
            ValueError: unsupported floats, blocks or scales.
        """
        fields = Fields(announced)
        fields.tell_unknown(_KNOWN)
        fields.check_kv_scheme()
        fields.one_of("is_checkpoint_fp8_serialized", (True,), True)
        inputs = fields.one_of("activation_scheme", ("dynamic", "static"), "dynamic")
        fields.one_of("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
        fields.one_of("scale_fmt", ("float", "ue8m0", None), None)
        block = fields.sizes(_BLOCKS)
        # Writers of this field, even null, call scales "inv", although they multiply, too.
        is_theirs = _BLOCKS in fields
        static = _INPUT_SCALES[is_theirs] if inputs == "static" and block is None else None
        return Fp8Scheme(
            scales="weight_scale_inv" if is_theirs else "weight_scale",
            block=block,
            input_scale=static,
            plain=fields.names("modules_to_not_convert") + fields.names("ignored_layers"),
            is_dense=self._is_dense,
        )

    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> Weight:
        """Round to the nearest multiple of each row's scale, which maps its largest number to 448.

        Raises:
            ValueError: a number is not finite.
        """
        # One pass without a temporary of the weight's size, which `abs` would need.
        least, most = torch.aminmax(weight, dim=1, keepdim=True)
        scales = torch.maximum(most, -least).div_(_LARGEST)
        if not scales.isfinite().all():
            raise ValueError("it has numbers that are not finite")
        scales.clamp_min_(_LEAST)
        codes = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
        for some in _blocks(weight):
            codes[some] = weight[some].div(scales[some])
        made = GroupedWeight(codes, scales, activations="e4m3")
        return _floats(made) if self._is_dense else made

    def announce(self, packed: Sequence[str], plain: Sequence[str]) -> Mapping[str, Any]:
        """See ``Writes``: all matrices share scales in the same way, as readers require."""
        if self._scales == "auto":
            fits = self._folder is not None and writing.in_blocks(self._folder, packed)
            self._written = "block" if fits else "tensor"
        blocks = {_BLOCKS: [writing.BLOCK] * 2} if self._written == "block" else {}
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            # Read by transformers, which assumes that the head is FP8 if it is not named.
            "modules_to_not_convert": [*plain, _HEAD],
            # Read by vLLM.
            "ignored_layers": list(plain) or None,
            **blocks,
        }

    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        """See ``Writes``."""
        rows, columns = {
            "row": (1, matrix.columns),
            "tensor": (matrix.rows, matrix.columns),
            "block": (writing.BLOCK, writing.BLOCK),
        }[self._written]
        return writing.nearest(weight, rows, columns)

    def pack(self, matrix: Matrix, weight: GroupedWeight) -> Mapping[str, torch.Tensor]:
        """See ``Writes``."""
        if self._written == "block":
            scales = weight.scales[:: writing.BLOCK].contiguous()
            return {"weight": weight.codes, "weight_scale_inv": scales}
        scales = weight.scales if self._written == "row" else weight.scales[0, 0]
        return {"weight": weight.codes, "weight_scale": scales.clone()}


@dataclass(frozen=True, slots=True)
class Fp8Scheme:
    """Storage layout of an FP8 checkpoint.

    Attributes:
        scales: name of the scales.
        block: rows and columns that share a scale; None for one per matrix, or one per row.
        input_scale: name of the static scale of inputs; None where each row has its own.
        plain: names of matrices, or of modules that contain them, stored as other floats.
        is_dense: whether weights are dequantized.
    """

    scales: str
    block: tuple[int, int] | None
    input_scale: str | None
    plain: tuple[str, ...]
    is_dense: bool

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """See ``Scheme``: matrices of layers are FP8, except routers of experts."""
        name = matrix.name
        is_plain = any(_has(name, part) for part in self.plain)
        if is_plain or ".layers." not in name or weighs_experts(name):
            return None
        shapes: tuple[tuple[int, ...], ...] = (*_SCALARS, (matrix.rows, 1))
        if self.block is not None:
            rows, columns = self.block
            shapes = ((-(-matrix.rows // rows), -(-matrix.columns // columns)),)
        inputs = {} if self.input_scale is None else {self.input_scale: _ONE}
        return {
            self.scales: tuple(Stored(dtype, shape) for shape in shapes for dtype in _FLOATS),
            **inputs,
            "weight": (Stored("F8_E4M3", (matrix.rows, matrix.columns)),),
        }

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """See ``Scheme``: scales of inputs that are not used."""
        return {name: _ONE for name in _INPUT_SCALES if name != self.input_scale}

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> Weight:
        """Return ``code * scale``; see ``Scheme``."""
        scales, group_of = finite(self.scales, take(self.scales)), None
        static = None
        if self.input_scale is not None:
            static = float(finite(self.input_scale, take(self.input_scale)))
            if static <= 0:
                raise ValueError(f"{self.input_scale} is {static}, and inputs are divided by it")
        if self.block is None:
            scales = scales.reshape(-1, 1).expand(matrix.rows, 1)
        else:
            rows, columns = self.block
            scales = scales.repeat_interleave(min(rows, matrix.rows), 0)[: matrix.rows]
            if matrix.columns % columns and scales.shape[1] > 1:
                group_of = torch.arange(matrix.columns, dtype=torch.int32) // columns
        codes = take("weight")
        # In e4m3 a NaN has all bits but the sign set.
        if bool((codes.view(torch.uint8) & 127 == 127).any()):
            raise ValueError("weight contains a NaN")
        # With blocks inputs are quantized group by group, otherwise row by row.
        made = GroupedWeight(codes, scales.contiguous(), group_of=group_of, activations="e4m3")
        weight = _floats(made) if self.is_dense else made
        return weight if static is None else StaticWeight(weight, "e4m3", static)


def _has(name: str, part: str) -> bool:
    """Whether a matrix has a name, begins with it, or ends with it, at a dot."""
    return name == part or name.startswith(f"{part}.") or name.endswith(f".{part}")


def _blocks(numbers: torch.Tensor) -> Iterator[slice]:
    """Yield slices of rows."""
    step = max(1, _BLOCK // numbers.shape[1])
    for begin in range(0, numbers.shape[0], step):
        yield slice(begin, begin + step)


def _floats(weight: GroupedWeight) -> torch.Tensor:
    """Dequantize to float32."""
    made = torch.empty(weight.codes.shape, dtype=torch.float32)
    for some in _blocks(made):
        values, scales = made[some].copy_(weight.codes[some]), weight.scales[some]
        if weight.group_of is not None:
            values *= scales[:, weight.group_of.long()]
        else:
            torch.unflatten(values, 1, (scales.shape[1], -1)).mul_(scales.unsqueeze(-1))
    return made
