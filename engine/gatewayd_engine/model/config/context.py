"""Context length of a model: stated by config.json, and served. Imports no torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from gatewayd_engine.model.config.families import FAMILIES, Family, find_architecture
from gatewayd_engine.model.config.text_part import TEXT, text_part
from gatewayd_engine.model.json_fields import JsonFields, SpecError

_log = logging.getLogger(__name__)

MOST_CONTEXT = 1 << 21
"""Limit of the context length in tokens: a table has a row for each position."""


def served_context(values: Mapping[str, Any]) -> int | None:
    """Return the context length that is served by default, in tokens.

    Args:
        values: of config.json, unchecked.

    Returns:
        None if it states none that can be read.
    """
    whole = JsonFields(values, "config.json")
    try:
        # Of models that only a plugin serves, the language model may be nested as well.
        text = text_part(whole) or (whole.inner(TEXT) or whole).over(values, {})
        stated = text.size("max_position_embeddings")
        name = find_architecture(text.texts("architectures") or (), text.text("model_type", ""))
    except SpecError:
        return None
    return stated if name is None else min(stated, FAMILIES[name].most_context or stated)


def read_context(config: JsonFields, family: Family, supported: int, wanted: int | None) -> int:
    """Return the context length to serve, in tokens.

    Args:
        config: of config.json.
        family: of the model.
        supported: longest context of the rotary embedding, in tokens.
        wanted: configured context length; None for the model's own.

    Raises:
        SpecError: it is longer than the model's, or than ``MOST_CONTEXT``.
    """
    most = supported
    if family.most_context is not None and wanted is None and supported > family.most_context:
        most = family.most_context
        _log.warning(
            "%s states a context of %d tokens, of which %d are served; set [model] max_model_len"
            " to serve fewer",
            config.where,
            supported,
            most,
        )
    served = most if wanted is None else wanted
    if served > MOST_CONTEXT:
        raise SpecError(
            f"{config.where}: a context of {served} tokens is above {MOST_CONTEXT};"
            " set [model] max_model_len to at most that"
        )
    if not 0 < served <= supported:
        raise SpecError(f"max_model_len is {served}; this model takes between 1 and {supported}")
    return served
