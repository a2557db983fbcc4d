"""Matrix multiplication with humming-kernels."""

from __future__ import annotations

import importlib
import json
import logging
from typing import TYPE_CHECKING, Any

import torch

from gatewayd_quant_humming.packing import code_name, packed

if TYPE_CHECKING:
    from gatewayd_hooks.multiplying import Form
    from gatewayd_hooks.quantization import GroupedWeight, QuantizerResources
    from gatewayd_quant_humming.config import HummingConfig

_log = logging.getLogger(__name__)

_ROWS, _COLUMNS = 128, 64
"""Sides of its smallest tiles on Hopper; other sizes have no kernel there."""
_LEAST_GROUP = 16
_BITS = range(2, 9)
_HOPPER = (9, 0)
"""Compute capability from which engines have FP8 x FP8 kernels themselves."""


class Humming:
    """Quantized weights times 16-bit floats.

    Args:
        config: its settings.
    """

    def __init__(self, config: HummingConfig) -> None:
        self._config = config
        self._layer: Any = None
        self._schema: Any = None

    def open(self, resources: QuantizerResources) -> None:
        """Import the library, if there is a GPU.

        Raises:
            ValueError: it is not installed.
        """
        if not resources.device.startswith("cuda"):
            _log.warning("humming requires a GPU; it has no effect on %s", resources.device)
            return
        try:
            self._layer = importlib.import_module("humming.layer").HummingLayer
            self._schema = importlib.import_module("humming.schema")
        except ImportError as error:
            raise ValueError(
                f"humming-kernels cannot be imported ({error}); pip install 'gatewayd[humming]',"
                " or take humming out of [quantizer] kernels"
            ) from error

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def suits(self, form: Form) -> bool:
        """Whether it supports such matrices on such a device.

        Activations stay 16-bit floats: matrices with quantized activations are left to engines that
        quantize them, except 8-bit floats where no engine does.
        """
        if self._layer is None or form.capability is None or not form.is_ordered:
            return False
        if form.activations == "int8" or (
            form.activations == "e4m3" and form.capability >= _HOPPER
        ):
            return False
        group_size = form.columns // form.groups
        # Its kernels have groups of powers of two.
        if form.groups > 1 and (group_size < _LEAST_GROUP or group_size & (group_size - 1)):
            return False
        if form.codes.is_floating_point:
            if form.codes != torch.float8_e4m3fn or form.has_offsets:
                return False
        elif form.bits not in _BITS:
            return False
        if form.rows % _ROWS or form.columns % _COLUMNS:
            return False
        is_known: bool = self._described(
            code_name(form.codes, form.bits),
            0 if form.groups == 1 else group_size,
            has_zeros=form.codes == torch.uint8,
        ).is_compatible_with(self._schema.HummingInputSchema(), form.dtype)
        return is_known

    def take(
        self, form: Form, weight: GroupedWeight, bias: torch.Tensor | None
    ) -> HummingProduct | None:
        """Pack a matrix, and let the library repack it.

        Returns:
            None if zero points are no integers.

        Raises:
            RuntimeError: the library expects other tensors than the known ones.
        """
        made = packed(weight, bias, form.dtype)
        if made is None:
            return None
        schema = self._described(
            made.dtype, made.group_size, has_zeros="zero_point" in made.tensors
        )
        # The layer allocates its parameters on the default device.
        with torch.device(form.device):
            layer = self._layer(
                shape_n=form.rows,
                shape_k=form.columns,
                weight_config=schema,
                has_bias=bias is not None,
                torch_dtype=form.dtype,
            )
        wanted = dict(layer.named_parameters()).keys()
        if wanted != made.tensors.keys():
            raise RuntimeError(
                f"humming-kernels expects {sorted(wanted)}, not {sorted(made.tensors)}"
            )
        layer.load_from_tensors(made.tensors)
        layer.transform()
        return HummingProduct(layer, form.rows, is_steady=self._config.batch_invariant)

    def _described(self, dtype: str, group_size: int, *, has_zeros: bool) -> Any:  # noqa: ANN401
        """Return humming's description of a matrix."""
        return self._schema.HummingWeightSchema(
            b_dtype=dtype, weight_scale_group_size=group_size, has_zero_point=has_zeros
        )


class HummingProduct:
    """Matrix in a layer of humming; see ``gatewayd_hooks.multiplying.Product``.

    Args:
        layer: transformed.
        rows: of its matrix.
        is_steady: whether it accumulates in a fixed order.
    """

    __slots__ = ("_compute", "_forward", "_rows", "is_steady", "nbytes")
    rounds_inputs = False

    def __init__(self, layer: Any, rows: int, *, is_steady: bool) -> None:  # noqa: ANN401
        self._forward = layer.forward
        self._rows = rows
        self._compute = json.dumps({"use_batch_invariant": True}) if is_steady else None
        self.is_steady = is_steady
        self.nbytes = sum(tensor.nbytes for tensor in layer.state_dict().values())

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``Product``; its kernels need contiguous inputs with at least one row."""
        if not len(x):
            return x.new_empty(0, self._rows) if out is None else out
        x = x.contiguous()
        if out is None or out.is_contiguous():
            made: torch.Tensor = self._forward(x, outputs=out, compute_config=self._compute)
            return made
        return out.copy_(self._forward(x, compute_config=self._compute))
