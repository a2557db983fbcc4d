"""A model without weights: its class, its trace, and what the engine must know of it."""

from __future__ import annotations

import json
import logging
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import AttentionInterface
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from gatewayd_hooks.model_backends import ModelFacts
from gatewayd_hooks.resources import KvShape
from gatewayd_model_transformers.attention import SERVING, LayerHeads, attention
from gatewayd_model_transformers.tracing import (
    TRACING,
    AttentionCall,
    ModelTrace,
    Tracer,
    Unservable,
)

_LEAST_MODEL_LEN = 1
_DEFAULT_MODEL_LEN = 1 << 20
"""Context length of a model whose config.json names none."""
_MOST_MODEL_LEN = 1 << 21
_MOST_LAYERS = 512
"""A trace takes 15 ms of a core for each layer."""
_MOST_MODULES = 1 << 17
_MOST_SIZE = 1 << 31
_UNLIMITED = frozenset({"model_max_length"})
"""Keys that have a huge number where a tokenizer has no limit; no model reads them."""
_MOST_VOCABULARY = 1 << 24
"""Masks of tokens are allocated before the weights are compared with config.json."""
_LAYER_COUNT = re.compile(r"(?<!per)(^|_)layers?$")
"""Keys of config.json such as ``n_layer`` and ``num_hidden_layers``, not ``x_per_layer``."""
_LONGEST_LINE = 300
_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
_IGNORED = {"auto_map", "configuration_files", "_attn_implementation", "attn_implementation"}
"""Keys of config.json that name code or other files."""


@dataclass(frozen=True, slots=True, eq=False)
class Blueprint:
    """A traced model.

    Attributes:
        model: of transformers, on the meta device.
        trace: of it.
        facts: for the engine.
        layers: padding of each attention call's heads.
        first_position: of a sequence; above 0 in models that count from their padding id.
    """

    model: Any
    trace: ModelTrace
    facts: ModelFacts
    layers: tuple[LayerHeads, ...]
    first_position: int


def trace_model(folder: str, max_model_len: int | None) -> Blueprint:
    """Build the model of a folder on the meta device, and trace it.

    Raises:
        ValueError: it cannot be served; the message names it.
    """
    config = _config(folder)
    architecture = (getattr(config, "architectures", None) or [config.model_type])[0]
    try:
        model = _build(config)
        first = _first_position(model)
        length = _model_len(config, max_model_len, first)
        trace = Tracer(model, length).run()
        facts, layers = _facts(folder, config, architecture, model, trace, length)
    except Unservable as error:
        raise ValueError(
            f"{architecture} is not served by the model backend transformers: {error}"
        ) from error
    except Exception as error:  # the code of some two hundred models
        raise ValueError(
            f"{architecture} is not served by the model backend transformers, which fails with"
            f" this config.json: {type(error).__name__}: {_line(error)}"
        ) from error
    AttentionInterface.register(SERVING, attention)
    model.set_attn_implementation(SERVING)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("grouped_mm")
    return Blueprint(model, trace, facts, layers, first)


def _config(folder: str) -> Any:  # noqa: ANN401
    # Not by transformers, which would follow names of other files in it.
    path = Path(folder) / "config.json"
    values = _object(path)
    known = values.get("model_type")
    if not isinstance(known, str) or known not in CONFIG_MAPPING:
        own = ", and the code that its auto_map names is not run" if "auto_map" in values else ""
        raise ValueError(f"{path}: transformers has no model_type {known!r}{own}")
    # Before configurations are made, of which some repeat a value for each layer.
    _refuse_sizes(path, values)
    # By its class: the automatic choice would look at auto_map.
    kept = {key: value for key, value in values.items() if key not in _IGNORED}
    try:
        return CONFIG_MAPPING[known].from_dict(kept)
    except Exception as error:  # the checks of some two hundred classes
        raise ValueError(f"{path}: transformers cannot read it: {_line(error)}") from error


def _object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ValueError: it is none, or cannot be read.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"), object_hook=_decoded)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {_line(error)}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no JSON object")
    return values


def _decoded(values: dict[str, Any]) -> Any:  # noqa: ANN401
    """Return the number that transformers writes as an object, else the object."""
    tag = values.get("__float__")
    return _FLOATS.get(tag, values) if len(values) == 1 and isinstance(tag, str) else values


def _refuse_sizes(path: Path, values: dict[str, Any]) -> None:
    """Refuse numbers that no model has, at any depth.

    Raises:
        ValueError: one is above its limit.
    """
    left: list[Any] = [values]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += each.values()
            for key, value in each.items():
                most = _MOST_LAYERS if _LAYER_COUNT.search(key) else _MOST_SIZE
                if isinstance(value, int) and value > most and key not in _UNLIMITED:
                    raise ValueError(f"{path}: {key[:60]} is {value}, above {most}")


@contextmanager
def _bounded_modules() -> Iterator[None]:
    """Refuse models of more modules than any that is served has."""
    count = 0

    def counted(*_: object) -> None:
        nonlocal count
        count += 1
        if count > _MOST_MODULES:
            raise Unservable(f"its config.json asks for more than {_MOST_MODULES} modules")

    handle = register_module_module_registration_hook(counted)
    try:
        yield
    finally:
        handle.remove()


def _line(error: Exception) -> str:
    """Return the first line of a message, cut, or the error's kind."""
    return str(error).strip().partition("\n")[0][:_LONGEST_LINE] or type(error).__name__


def _build(config: Any) -> Any:  # noqa: ANN401
    if config.is_encoder_decoder:
        raise Unservable("it has an encoder, to which its layers attend")
    found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if found is None:
        raise Unservable("it is no causal language model")
    kind = found[0] if isinstance(found, list | tuple) else found
    if kind.config_class is config.sub_configs.get("text_config"):
        # The text model of one that sees or hears, too.
        config = config.get_text_config()
    if kind._is_stateful:
        raise Unservable("its layers have a recurrent state")
    if not kind._can_set_attn_implementation():
        raise Unservable("its attention cannot be replaced")
    # Known to no trace yet; checked by transformers when the model is made.
    AttentionInterface.register(TRACING, attention)
    log = logging.getLogger("transformers")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.device("meta"), _bounded_modules():
            warnings.simplefilter("ignore")
            model = kind._from_config(config, attn_implementation=TRACING)
    except Unservable:
        raise
    except Exception as error:
        raise Unservable(f"transformers cannot make it: {_line(error)}") from error
    finally:
        log.setLevel(level)
    if kind._can_set_experts_implementation():
        # Others choose experts by values, of which a trace has none.
        model.set_experts_implementation("batched_mm")
    return model.eval()


def _first_position(model: Any) -> int:  # noqa: ANN401
    # Without position ids these models count from the id of their padding, as they were trained.
    counting = (
        module.padding_idx + 1
        for module in model.modules()
        if hasattr(module, "create_position_ids_from_input_ids")
    )
    return next(counting, 0)


def _model_len(config: Any, wanted: int | None, first: int) -> int:  # noqa: ANN401
    text = config.get_text_config()
    stated = getattr(text, "max_position_embeddings", None) or 0
    # Models with relative positions state none, or -1.
    longest = stated - first if stated > 0 else _DEFAULT_MODEL_LEN
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Longer contexts have other frequencies, to which cached keys cannot switch.
        longest = rope.get("original_max_position_embeddings") or longest
    if not longest <= _MOST_MODEL_LEN:
        raise Unservable(f"its context of {longest} tokens is above {_MOST_MODEL_LEN}")
    if wanted is not None and not _LEAST_MODEL_LEN <= wanted <= longest:
        raise Unservable(f"max_model_len is {wanted}; this model takes between 1 and {longest}")
    return wanted or int(longest)


def _facts(
    folder: str,
    config: Any,  # noqa: ANN401
    architecture: str,
    model: Any,  # noqa: ANN401
    trace: ModelTrace,
    length: int,
) -> tuple[ModelFacts, tuple[LayerHeads, ...]]:
    if trace.vocab_size > _MOST_VOCABULARY:
        raise Unservable(f"its vocab_size is {trace.vocab_size}, above {_MOST_VOCABULARY}")
    calls = trace.calls
    softcaps = {call.softcap for call in calls}
    if len(softcaps) > 1:
        raise Unservable("its layers differ in the softcap of their scores")
    sinks = {call.sinks is None for call in calls}
    kv_heads = max(call.kv_heads for call in calls)
    per_group = max(call.heads // call.kv_heads for call in calls)
    head_dim = max(max(call.key_dim, call.value_dim) for call in calls)
    scale = calls[0].scale
    shape = KvShape(
        num_layers=len(calls),
        num_heads=kv_heads * per_group,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=scale,
        softcap=calls[0].softcap,
        windows=tuple(0 if call.window >= length else call.window for call in calls),
    )
    facts = ModelFacts(
        architecture=architecture,
        num_parameters=sum(each.numel() for each in model.parameters()),
        vocab_size=trace.vocab_size,
        hidden_size=trace.hidden_size,
        max_model_len=length,
        eos_token_ids=_eos(folder, config),
        attention=shape,
        has_sinks=False in sinks,
    )
    return facts, tuple(_heads(call, shape, scale) for call in calls)


def _heads(call: AttentionCall, shape: KvShape, scale: float) -> LayerHeads:
    more_heads = shape.num_kv_heads - call.kv_heads
    own = call.heads // call.kv_heads
    more_queries = shape.num_heads // shape.num_kv_heads - own
    more_keys, more_values = shape.head_dim - call.key_dim, shape.head_dim - call.value_dim
    return LayerHeads(
        per_group=own,
        factor=call.scale / scale,
        query_padding=(0, more_keys, 0, more_queries, 0, more_heads),
        key_padding=(0, more_keys, 0, more_heads),
        value_padding=(0, more_values, 0, more_heads),
        value_dim=call.value_dim,
    )


def _eos(folder: str, config: Any) -> tuple[int, ...]:  # noqa: ANN401
    stated = [getattr(each, "eos_token_id", None) for each in (config, config.get_text_config())]
    path = Path(folder) / "generation_config.json"
    if path.exists():
        # Chat models often name the end of a turn there only.
        stated.append(_object(path).get("eos_token_id"))
    found: set[int] = set()
    for ids in stated:
        each = ids if isinstance(ids, list | tuple) else [] if ids is None else [ids]
        if not all(type(one) is int and 0 <= one < _MOST_SIZE for one in each):
            raise Unservable(f"its eos_token_id is {str(ids)[:60]}, not integers from 0")
        found.update(each)
    return tuple(sorted(found))
