"""What a GPTQ checkpoint announces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewayd_hooks.quantized import Fields
from gatewayd_quant_gptq.scheme import GptqScheme

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Announcement, QuantizerResources

_GROUP_SIZES = (16, 32, 64, 128, 256, 512, 1024, -1)
_FORMATS = ("gptq", "gptq_v2")
_KNOWN = (
    *("quant_method", "bits", "group_size", "desc_act", "sym", "checkpoint_format", "format"),
    *("lm_head", "pack_dtype", "dynamic", "is_marlin_format", "modules_in_block_to_quantize"),
    *("static_groups", "true_sequential", "damp_percent", "meta"),
    *("adapter", "rotation", "extra_config"),
)


class Gptq:
    """Reads GPTQ."""

    def open(self, resources: QuantizerResources) -> None:
        """The model does not matter here."""

    def close(self) -> None:
        """Nothing to give back."""

    def scheme(self, announced: Announcement) -> GptqScheme:
        """See ``Reads``.

        Raises:
            ValueError: other bits, group sizes or packings than those known.
        """
        fields = Fields(announced)
        fields.tell_unknown(_KNOWN)
        # What single matrices have of their own, and what products must be corrected by.
        fields.refuse_set("dynamic", "extra_config", "is_marlin_format", "adapter", "rotation")
        fields.one_of("pack_dtype", ("int32",), "int32")
        fields.flag("sym", True)  # The zeros are stored in either case.
        old_name = fields.one_of("format", _FORMATS, "gptq")
        version = fields.one_of("checkpoint_format", _FORMATS, old_name)
        return GptqScheme(
            bits=fields.one_of("bits", (4, 8)),
            group_size=fields.one_of("group_size", _GROUP_SIZES),
            is_ordered=fields.flag("desc_act", False),
            least_zero=0 if version == "gptq_v2" else 1,
            has_head=fields.flag("lm_head", False),
            parts=_parts(fields),
        )


def _parts(fields: Fields) -> tuple[str, ...]:
    """Names inside a layer, of the only matrices that are packed; none for all."""
    name = "modules_in_block_to_quantize"
    if name not in fields:
        return ()
    value = fields.value(name) or []
    lists = value if isinstance(value, list) else [value]
    flat = [part for some in lists for part in (some if isinstance(some, list) else [some])]
    if not all(isinstance(part, str) for part in flat):
        raise fields.refused(name, f"is {value!r}, not lists of names")
    return tuple(flat)
