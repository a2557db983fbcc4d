"""Model information: ``/api/tags``, ``/api/show``, ``/api/ps``."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

from gatewayd_hooks.protocols import Gateway, RequestRefusal, ServedModel
from gatewayd_proto_ollama.answers import stamp

Fields = dict[str, Any]

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LEVELS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_NEVER = "2318-01-01T00:00:00Z"
"""Ollama's expiry time of a model that is never unloaded."""


def resolve(gateway: Gateway, name: str | None) -> str:
    """Return the served name; ``:latest`` may be omitted or added.

    Raises:
        Refusal: it is not served.
    """
    if not name:
        raise RequestRefusal(
            400, "model is required", param="model", code="missing_required_parameter"
        )
    for one in (name, name.removesuffix(":latest"), f"{name}:latest"):
        if one in gateway.models:
            return one
    raise RequestRefusal(
        404,
        f"model '{name[:256]}' not found; served: {', '.join(gateway.models)}",
        code="model_not_found",
        param="model",
    )


def tags(gateway: Gateway) -> Fields:
    """List all model names; without size and family those that were never loaded."""
    return {"models": [_row(name, gateway.describe(name)) for name in gateway.models]}


def running(gateway: Gateway) -> Fields:
    """List the loaded models."""
    rows = []
    for name in gateway.models:
        model = gateway.describe(name) if gateway.is_loaded(name) else None
        if model is not None:
            row = _row(name, model)
            more = {"expires_at": _NEVER, "context_length": model.context_length}
            rows.append({**row, "size_vram": row["size"], **more})
    return {"models": rows}


def shown(gateway: Gateway, name: str) -> Fields:
    """Describe one model in detail; without its sizes if it was never loaded."""
    model, text = gateway.describe(name), gateway.text_of(name)
    capabilities = ["completion"]
    if text.chat_template and text.calls_tools:
        capabilities.append("tools")
    if text.chat_template and text.reasons:
        capabilities.append("thinking")
    info: Fields = {"general.basename": name}
    if model is not None:
        info["general.architecture"] = _family(model)
        info["general.parameter_count"] = model.num_parameters
        info[f"{_family(model)}.context_length"] = model.context_length
    return {
        "modelfile": f"FROM {name}\n",
        "parameters": "" if model is None else f"num_ctx {model.context_length}",
        "template": text.chat_template,
        "license": "",
        "modified_at": stamp(0 if model is None else model.created),
        "details": _details(model),
        "model_info": info,
        "capabilities": capabilities,
    }


def shown_name(name: str) -> str:
    """Return a name with a tag, as Ollama's always have one."""
    return name if ":" in name else f"{name}:latest"


def _row(name: str, model: ServedModel | None) -> Fields:
    known = "" if model is None else f" {model.architecture} {model.num_parameters}"
    return {
        "name": shown_name(name),
        "model": shown_name(name),
        "modified_at": stamp(0 if model is None else model.created),
        # An estimate: quantized weights take less.
        "size": 0 if model is None else model.num_parameters * _BYTES.get(model.dtype, 2),
        "digest": sha256(f"{name}{known}".encode()).hexdigest(),
        "details": _details(model),
    }


def _details(model: ServedModel | None) -> Fields:
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": "" if model is None else _family(model),
        "families": [] if model is None else [_family(model)],
        "parameter_size": "" if model is None else _size(model.num_parameters),
        "quantization_level": "" if model is None else _LEVELS.get(model.dtype, model.dtype),
    }


def _family(model: ServedModel) -> str:
    """Return ``llama`` for ``LlamaForCausalLM``."""
    return re.sub(r"For[A-Z]\w*$", "", model.architecture).lower()


def _size(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)
