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


def loaded(gateway: Gateway) -> ServedModel:
    """Return the properties of the model.

    Raises:
        Refusal: it is being loaded.
    """
    if gateway.model is None:
        raise RequestRefusal(
            503,
            "the model is not loaded yet; try again",
            type="server_error",
            code="engine_unavailable",
            retry_after=5,
        )
    return gateway.model


def tags(gateway: Gateway) -> Fields:
    """List all model names."""
    model = loaded(gateway)
    return {"models": [_row(name, model) for name in gateway.models]}


def running(gateway: Gateway) -> Fields:
    """List the loaded models; empty while none is loaded."""
    model = gateway.model
    if model is None:
        return {"models": []}
    more = {"expires_at": _NEVER, "context_length": model.context_length}
    rows = [_row(name, model) for name in gateway.models]
    return {"models": [{**row, "size_vram": row["size"], **more} for row in rows]}


def shown(gateway: Gateway, name: str) -> Fields:
    """Describe one model in detail."""
    model = loaded(gateway)
    family = _family(model)
    capabilities = ["completion"]
    if model.chat_template and model.calls_tools:
        capabilities.append("tools")
    if model.chat_template and model.reasons:
        capabilities.append("thinking")
    return {
        "modelfile": f"FROM {name}\n",
        "parameters": f"num_ctx {model.context_length}",
        "template": model.chat_template,
        "license": "",
        "modified_at": stamp(model.created),
        "details": _details(model),
        "model_info": {
            "general.architecture": family,
            "general.basename": name,
            "general.parameter_count": model.num_parameters,
            f"{family}.context_length": model.context_length,
        },
        "capabilities": capabilities,
    }


def shown_name(name: str) -> str:
    """Return a name with a tag, as Ollama's always have one."""
    return name if ":" in name else f"{name}:latest"


def _row(name: str, model: ServedModel) -> Fields:
    return {
        "name": shown_name(name),
        "model": shown_name(name),
        "modified_at": stamp(model.created),
        # An estimate: quantized weights take less.
        "size": model.num_parameters * _BYTES.get(model.dtype, 2),
        "digest": sha256(
            f"{name} {model.architecture} {model.num_parameters}".encode()
        ).hexdigest(),
        "details": _details(model),
    }


def _details(model: ServedModel) -> Fields:
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": _family(model),
        "families": [_family(model)],
        "parameter_size": _size(model.num_parameters),
        "quantization_level": _LEVELS.get(model.dtype, model.dtype),
    }


def _family(model: ServedModel) -> str:
    """Return ``llama`` for ``LlamaForCausalLM``."""
    return re.sub(r"For[A-Z]\w*$", "", model.architecture).lower()


def _size(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)
