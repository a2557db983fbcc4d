"""Sliding windows of a model's layers, read from config.json. Imports no torch."""

from __future__ import annotations

from gatewayd_engine.model.config.families import Family
from gatewayd_engine.model.json_fields import JsonFields, SpecError


def read_windows(config: JsonFields, family: Family, num_layers: int) -> tuple[int, ...]:
    """Read the window of each layer; 0 for all positions.

    Raises:
        SpecError: ``layer_types`` does not fit the layers.
    """
    window = config.optional_size("sliding_window", family.window) or 0
    match family.windows:
        case "none":
            has_window = [False] * num_layers
        case "all":
            has_window = [True] * num_layers
        case "used":
            has_window = [config.flag("use_sliding_window", False)] * num_layers
        case "listed":
            first = (config.indices("max_window_layers") or (28,))[0]
            is_used = config.flag("use_sliding_window", False)
            has_window = [is_used and layer >= first for layer in range(num_layers)]
            # Without use_sliding_window, layers that ``layer_types`` lists have no window either.
            window = window if is_used else 0
        case "alternating":
            has_window = [layer % 2 == 0 for layer in range(num_layers)]
    listed = config.texts("layer_types")
    if listed is not None and family.windows in ("listed", "alternating"):
        unknown = set(listed) - {"full_attention", "sliding_attention"}
        if unknown or len(listed) != num_layers:
            raise SpecError(
                f"{config.where}: layer_types must name full_attention or sliding_attention for"
                f" each of {num_layers} layers, not {', '.join(sorted(set(listed)))} for"
                f" {len(listed)}"
            )
        has_window = [kind == "sliding_attention" for kind in listed]
    return tuple(window if has else 0 for has in has_window)
