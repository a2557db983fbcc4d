"""Parses the configuration of a compressed-tensors checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gatewayd_hooks.helpers.quantized import Fields
from gatewayd_quant_compressed_tensors.form import FLOAT, INT, PACKED, WeightForm
from gatewayd_quant_compressed_tensors.nvfp4 import GROUP, NVFP4, Nvfp4
from gatewayd_quant_compressed_tensors.scheme import CompressedScheme
from gatewayd_quant_compressed_tensors.targets import ModuleTargets

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Announcement, QuantizerResources

_KNOWN = (
    *("quant_method", "format", "config_groups", "ignore", "quantization_status"),
    *("kv_cache_scheme", "sparsity_config", "global_compression_ratio", "version"),
    "transform_config",
)
_KNOWN_OF_GROUPS = ("targets", "weights", "input_activations", "output_activations", "format")
_KNOWN_OF_WEIGHTS = (
    *("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure"),
    # Types of scales and zero points are read from the files; observers matter only for writing.
    *("actorder", "dynamic", "scale_dtype", "zp_dtype", "observer", "observer_kwargs"),
)
_FORMATS = (PACKED, INT, FLOAT, NVFP4)
_MIXED = "mixed-precision"
"""Each group has its own format."""
_STRATEGIES = ("tensor", "channel", "group", "block")
_ORDERS = (None, "weight", "static", "group", "dynamic")
_BY_INDEX = ("group", "dynamic")
"""Column orders stored in ``weight_g_idx``."""


class CompressedTensors:
    """Reads compressed-tensors checkpoints."""

    def open(self, resources: QuantizerResources) -> None:
        """Do nothing: the model does not matter."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def scheme(self, announced: Announcement) -> CompressedScheme:
        """See ``Reads``.

        Raises:
            ValueError: another format, or an unsupported part of it.
        """
        fields = Fields(announced)
        fields.tell_unknown(_KNOWN)
        fields.refuse_set("sparsity_config", "transform_config")
        fields.check_kv_scheme()
        fields.one_of("quantization_status", ("compressed", "frozen"), "compressed")
        format_ = fields.one_of("format", (*_FORMATS, _MIXED))
        groups = fields.part("config_groups")
        if groups is None or not list(groups):
            raise fields.refused("config_groups", "is missing: it says what is quantized, and how")
        made = []
        for name in groups:
            group = groups.part(name)
            if group is None:
                raise groups.refused(name, "is null, not an object")
            made.append((ModuleTargets.of(group, "targets"), _form(group, format_)))
        return CompressedScheme(tuple(made), ModuleTargets.of(fields, "ignore"))


def _form(group: Fields, outer: str) -> WeightForm | Nvfp4:
    """Return the storage form of a group's matrices.

    Raises:
        ValueError: it is not supported.
    """
    group.tell_unknown(_KNOWN_OF_GROUPS)
    group.refuse_set("output_activations")
    if outer == _MIXED and group.value("format") is None:
        raise group.refused("format", f"is missing, but the format of all is {_MIXED}")
    format_ = outer if group.value("format") is None else group.one_of("format", _FORMATS)
    weights = group.part("weights")
    if weights is None:
        raise group.refused("weights", "is missing: it says how they are stored")
    weights.tell_unknown(_KNOWN_OF_WEIGHTS)
    # Only activations are quantized while the model runs.
    weights.one_of("dynamic", (False, None), False)
    if format_ == NVFP4:
        weights.one_of("type", ("float",))
        weights.one_of("num_bits", (4,))
        weights.one_of("symmetric", (True,), True)
        weights.one_of("strategy", ("tensor_group",))
        weights.one_of("group_size", (GROUP,))
        return Nvfp4()
    weights.one_of("type", ("float",) if format_ == FLOAT else ("int",), "int")
    bits = weights.one_of("num_bits", (4, 8) if format_ == PACKED else (8,), 8)
    is_symmetric = weights.one_of("symmetric", (True,) if format_ == FLOAT else (True, False), True)
    size = weights.value("group_size")
    implied = "tensor" if size is None else "channel" if size == -1 else "group"
    if weights.value("strategy") is None:
        strategy = implied
    else:
        strategy = weights.one_of("strategy", _STRATEGIES)
    block = weights.sizes("block_structure")
    if strategy == "block" and block is None:
        raise weights.refused("block_structure", "is missing, but strategy is block")
    if strategy == "group" and not (type(size) is int and size > 0):
        raise weights.refused(
            "group_size", f"is {size!r}, but strategy is group: it must be positive"
        )
    order = weights.value("actorder")
    if order is not None and order is not False:
        order = weights.one_of("actorder", _ORDERS)
    if order in _BY_INDEX and (format_ != PACKED or strategy != "group"):
        raise weights.refused("actorder", f"is {order!r}, which only packed groups can have")
    inputs, is_static = _inputs(format_, group.part("input_activations"))
    return WeightForm(
        format=format_,
        bits=bits,
        is_symmetric=is_symmetric,
        rows=1
        if strategy in ("channel", "group")
        else block[0]
        if strategy == "block" and block
        else 0,
        columns=size if strategy == "group" else block[1] if strategy == "block" and block else 0,
        is_indexed=order in _BY_INDEX,
        inputs=inputs,
        is_static=is_static,
    )


def _inputs(format_: str, inputs: Fields | None) -> tuple[Literal["float", "int8", "e4m3"], bool]:
    """Return the quantization of activations, and whether its scale is static."""
    if inputs is None or inputs.value("num_bits") != 8 or inputs.value("symmetric") is False:
        return "float", False
    kind, by, dynamic = (inputs.value(name) for name in ("type", "strategy", "dynamic"))
    is_static = by == "tensor" and not dynamic
    if format_ == INT and kind == "int":
        is_known = is_static or (by, dynamic, inputs.value("symmetric")) == ("token", True, True)
        return "int8" if is_known else "float", is_static
    # A scale for each row is at least as good as coarser ones.
    return ("e4m3", is_static) if format_ == FLOAT and kind == "float" else ("float", False)
