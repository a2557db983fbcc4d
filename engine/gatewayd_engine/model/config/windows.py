"""Sliding windows, chunks and unrotated layers, read from config.json. Imports no torch."""

from __future__ import annotations

from gatewayd_engine.model.config.families import Family
from gatewayd_engine.model.json_fields import JsonFields, SpecError

_LISTED = ("listed", "listed_before", "interval", "unrotated", "rotated")
"""Families whose ``layer_types`` count."""


def read_windows(
    config: JsonFields, family: Family, rotated: tuple[bool, ...], max_len: int
) -> tuple[int, ...]:
    """Read the window of each layer; 0 for all positions.

    Args:
        config: of config.json.
        family: of the model.
        rotated: see ``read_rotated``.
        max_len: positions of the longest context.

    Raises:
        SpecError: ``layer_types`` does not fit the layers.
    """
    num_layers, is_before = len(rotated), family.windows == "listed_before"
    is_chunked = family.windows == "rotated"
    if is_chunked:
        window = config.optional_size("attention_chunk_size", family.window) or 0
        # Within its first chunk, a token attends to all positions before it.
        window = window if window < max_len else 0
    # transformers writes 0 for these families where they have no windows.
    elif is_before and config.raw("sliding_window") == 0:
        window = 0
    else:
        window = config.optional_size("sliding_window", family.window) or 0
    is_used = config.flag("use_sliding_window", False)
    match family.windows:
        case "none":
            has_window = [False] * num_layers
        case "all":
            has_window = [True] * num_layers
        case "used":
            has_window = [is_used] * num_layers
        case "listed" | "listed_before":
            first = (config.indices("max_window_layers") or (28,))[0]
            has_window = [
                layer % 2 == 0 and layer < first if is_before else layer >= first
                for layer in range(num_layers)
            ]
        case "interval":
            interval = config.size("sliding_window_pattern", family.full_interval)
            has_window = [(layer + 1) % interval != 0 for layer in range(num_layers)]
        case "unrotated":
            has_window = [not has_rope for has_rope in rotated]
        case "rotated":
            has_window = [*rotated]
    if family.windows in ("listed", "listed_before", "unrotated") and not is_used:
        # Without use_sliding_window, layers that ``layer_types`` lists have no window either.
        window = 0
    listed = config.texts("layer_types")
    if listed is not None and family.windows in _LISTED:
        limited = "chunked_attention" if is_chunked else "sliding_attention"
        unknown = set(listed) - {"full_attention", limited}
        if unknown or len(listed) != num_layers:
            raise SpecError(
                f"{config.where}: layer_types must name full_attention or {limited} for"
                f" each of {num_layers} layers, not {', '.join(sorted(set(listed)))} for"
                f" {len(listed)}"
            )
        has_window = [kind == limited for kind in listed]
    return tuple(window if has else 0 for has in has_window)


def read_rotated(config: JsonFields, family: Family, num_layers: int) -> tuple[bool, ...]:
    """Read which layers have a rotary embedding.

    Raises:
        SpecError: ``no_rope_layers`` does not fit the layers.
    """
    if family.unrotated_interval is None:
        return (True,) * num_layers
    # 1 marks a layer with rotary embedding, in spite of the name. An empty list says nothing.
    listed = config.indices("no_rope_layers")
    if listed:
        if len(listed) < num_layers or not {*listed} <= {0, 1}:
            raise SpecError(
                f"{config.where}: no_rope_layers must have a 0 or 1 for each of {num_layers} layers"
            )
        return tuple(flag == 1 for flag in listed[:num_layers])
    interval = config.size("no_rope_layer_interval", family.unrotated_interval)
    return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
