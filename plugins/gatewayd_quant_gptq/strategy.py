"""Parses and writes the configuration of GPTQ checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gatewayd_hooks.helpers.quantized import Fields, divisible
from gatewayd_hooks.helpers.rounding import nearest
from gatewayd_hooks.quantization import Fit, GroupedWeight
from gatewayd_quant_gptq.config import GptqConfig
from gatewayd_quant_gptq.fitting import Rounding
from gatewayd_quant_gptq.scheme import GptqScheme, packed_tensors

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Announcement, Matrix, QuantizerResources, Site

_log = logging.getLogger(__name__)

_GROUP_SIZES = (16, 32, 64, 128, 256, 512, 1024, -1)
_FIRST, _SECOND = _FORMATS = ("gptq", "gptq_v2")
_KNOWN = (
    *("quant_method", "bits", "group_size", "desc_act", "sym", "checkpoint_format", "format"),
    *("lm_head", "pack_dtype", "dynamic", "is_marlin_format", "modules_in_block_to_quantize"),
    *("static_groups", "true_sequential", "damp_percent", "meta"),
    *("adapter", "rotation", "extra_config"),
)


class Gptq:
    """Reads and writes GPTQ checkpoints.

    Args:
        config: for writing.
    """

    propagates = True

    def __init__(self, config: GptqConfig | None = None) -> None:
        self._config = config or GptqConfig()

    def open(self, resources: QuantizerResources) -> None:
        """Do nothing: the model does not matter."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def scheme(self, announced: Announcement) -> GptqScheme:
        """See ``Reads``.

        Raises:
            ValueError: unsupported bits, group sizes or packings.
        """
        fields = Fields(announced)
        fields.tell_unknown(_KNOWN)
        # Overrides for single matrices, and corrections of the output.
        fields.refuse_set("dynamic", "extra_config", "is_marlin_format", "adapter", "rotation")
        fields.one_of("pack_dtype", ("int32",), "int32")
        fields.flag("sym", True)  # Zero points are stored in either case.
        old_name = fields.one_of("format", _FORMATS, "gptq")
        version = fields.one_of("checkpoint_format", _FORMATS, old_name)
        return GptqScheme(
            bits=fields.one_of("bits", (4, 8)),
            group_size=fields.one_of("group_size", _GROUP_SIZES),
            is_ordered=fields.flag("desc_act", False),
            least_zero=int(version == _FIRST),
            has_head=fields.flag("lm_head", False),
            parts=_parts(fields),
        )

    def announce(self, packed: Sequence[str], plain: Sequence[str]) -> Mapping[str, Any]:
        """See ``Writes``.

        Raises:
            ValueError: a matrix stays unquantized in some layers, and not in others.
        """
        config = self._config
        inside, others = (dict.fromkeys(map(inside_layer, names)) for names in (packed, plain))
        for name in inside.keys() & others.keys():
            raise ValueError(
                f"{name} would be quantized in some layers and not in others, which GPTQ cannot"
                " express; skip it in all or in none"
            )
        return {
            "quant_method": "gptq",
            # gptqmodel supports asymmetric zero points of other writers in the second format alone.
            "checkpoint_format": _FIRST if config.symmetric else _SECOND,
            "bits": config.bits,
            "group_size": config.group_size,
            "desc_act": config.act_order,
            "sym": config.symmetric,
            "damp_percent": config.damping,
            "lm_head": False,
            **({"modules_in_block_to_quantize": [list(inside)]} if others else {}),
        }

    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        """See ``Writes``."""
        config = self._config
        self._check(matrix)
        return nearest(
            weight,
            config.group_size,
            config.bits,
            is_symmetric=config.symmetric,
        )

    def pack(self, matrix: Matrix, weight: GroupedWeight) -> Mapping[str, torch.Tensor]:
        """See ``Writes``."""
        config = self._config
        return packed_tensors(matrix, weight, config.group_size, int(config.symmetric))

    def fit(self, site: Site) -> Fit:
        """Quantize all matrices of a site at once; see ``Calibrates``."""
        config = self._config
        for matrix in site.matrices:
            self._check(matrix)
        rounding = Rounding(
            config.bits, config.group_size, config.symmetric, config.act_order, config.damping
        )
        # Rows are independent.
        whole = rounding.fit(torch.cat(site.weights), site.gram)
        if whole is None or whole.offsets is None:
            _log.warning(
                "%s: insufficient calibration data; rounded to nearest", site.matrices[0].name
            )
            pairs = zip(site.matrices, site.weights, strict=True)
            return Fit(tuple(self.nearest(matrix, weight) for matrix, weight in pairs))
        sizes = [matrix.rows for matrix in site.matrices]
        parts = zip(
            *(torch.split(each, sizes) for each in (whole.codes, whole.scales, whole.offsets)),
            strict=True,
        )
        return Fit(
            tuple(
                whole._replace(codes=codes, scales=scales, offsets=offsets)
                for codes, scales, offsets in parts
            )
        )

    def _check(self, matrix: Matrix) -> None:
        if self._config.group_size != -1:
            divisible(matrix.name, matrix.columns, self._config.group_size, "columns")


def inside_layer(name: str) -> str:
    """Return a matrix's name after the number of its layer."""
    return name.partition(".layers.")[2].partition(".")[2]


def _parts(fields: Fields) -> tuple[str, ...]:
    """Return the names within a layer of the only packed matrices; empty for all."""
    name = "modules_in_block_to_quantize"
    if name not in fields:
        return ()
    value = fields.value(name) or []
    lists = value if isinstance(value, list) else [value]
    flat = [part for some in lists for part in (some if isinstance(some, list) else [some])]
    if not all(isinstance(part, str) for part in flat):
        raise fields.refused(name, f"is {value!r}, not lists of names")
    return tuple(flat)
