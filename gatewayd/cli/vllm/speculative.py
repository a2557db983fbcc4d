"""Conversion of vLLM's ``--speculative-config`` to a drafter and its settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gatewayd.cli.vllm.conversions import Given, Settings, UnsupportedValue

KEYS = (
    "drafter.strategy",
    "drafter.ngram.min_match",
    "drafter.ngram.max_match",
    "drafter.draft_model.model",
    "drafter.draft_model.min_confidence",
    "spec_controller.strategy",
    "spec_controller.fixed.drafts",
)
_NGRAM = ("ngram", "[ngram]")
_KNOWN = {
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "draft_tensor_parallel_size",
}
_TRAINED = "set [drafter] strategy and its table in the configuration file, with heads trained for"


def convert(given: Given) -> Settings:
    """Convert the JSON object.

    Raises:
        UnsupportedValue: it is no object, or has a key or a method without an equivalent.
    """
    config = _object(str(given))
    if unknown := [key for key in config if key not in _KNOWN]:
        raise UnsupportedValue(f"{unknown[0]} has no equivalent; there is {', '.join(_KNOWN)}")
    if config.get("draft_tensor_parallel_size", 1) != 1:
        raise UnsupportedValue("draft_tensor_parallel_size must be 1")
    settings = dict(_drafter(config))
    if "num_speculative_tokens" in config:
        settings["spec_controller.strategy"] = "fixed"
        settings["spec_controller.fixed.drafts"] = config["num_speculative_tokens"]
    return settings


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UnsupportedValue(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UnsupportedValue("it must be a JSON object")
    return found


def _drafter(config: Mapping[str, Any]) -> Settings:
    model = config.get("model")
    method = config.get("method") or (
        "ngram" if model in _NGRAM or model is None else "draft_model"
    )
    make = _METHODS.get(method)
    if make is None:
        raise UnsupportedValue(
            f"there is no method {method!r}: {_TRAINED} the model; here are {', '.join(_METHODS)}"
        )
    return make(config)


def _ngram(config: Mapping[str, Any]) -> Settings:
    longest = config.get("prompt_lookup_max", config.get("prompt_lookup_min"))
    shortest = config.get("prompt_lookup_min", longest)
    settings: dict[str, Any] = {"drafter.strategy": "ngram"}
    if longest is not None:
        settings["drafter.ngram.min_match"] = shortest
        settings["drafter.ngram.max_match"] = longest
    return settings


def _draft_model(config: Mapping[str, Any]) -> Settings:
    if not config.get("model"):
        raise UnsupportedValue("the method draft_model needs a model")
    for key in ("prompt_lookup_min", "prompt_lookup_max"):
        if key in config:
            raise UnsupportedValue(f"{key} is for the method ngram")
    # Drafting stops at a probability by default here; there, at the number of tokens only.
    return {
        "drafter.strategy": "draft_model",
        "drafter.draft_model.model": config["model"],
        "drafter.draft_model.min_confidence": 0,
    }


_METHODS: dict[str, Callable[[Mapping[str, Any]], Settings]] = {
    "ngram": _ngram,
    "draft_model": _draft_model,
}
