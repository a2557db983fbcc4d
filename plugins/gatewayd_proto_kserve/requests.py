"""Converts ``ModelInferRequest`` to the body of a completion."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gatewayd_hooks.protocols import RequestRefusal
from gatewayd_hooks.requests.strict_json import decode_object
from gatewayd_proto_kserve.tensors import read_inputs

Fields = dict[str, Any]

INPUTS = {"text_input": "BYTES", "stream": "BOOL", "sampling_parameters": "BYTES"}
"""Datatypes of the inputs, which are those of Triton's backend for vLLM."""
OUTPUT = "text_output"
VERSION = "1"
"""Of every model."""
BY_NAME = "/v2/models"
"""Route that describes the model which its query names."""

_INTEGERS = frozenset(("max_tokens", "min_tokens", "top_k", "seed", "truncate_prompt_tokens"))
_NUMBERS = frozenset(
    (
        *("temperature", "top_p", "min_p", "repetition_penalty"),
        *("presence_penalty", "frequency_penalty"),
    )
)
_FLAGS = frozenset(("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"))
_OTHERS = frozenset(
    ("stop", "stop_token_ids", "logit_bias", "structured_outputs", "response_format", "user")
)
PARAMETERS = _INTEGERS | _NUMBERS | _FLAGS | _OTHERS
"""Fields of a completion that are parameters here; the rest would change the answer's format."""
_WORDS = {"true": True, "false": False}
_LONGEST = 64
"""Characters of a number."""


class InferCall(NamedTuple):
    """Converted request.

    Attributes:
        body: of a completion.
        is_stream: whether output is sent as it is generated.
        is_raw: whether tensors are sent as raw contents, as they were received.
        id: of the request.
        model: its name.
        ignored: parameters without effect.
    """

    body: Fields
    is_stream: bool
    is_raw: bool
    id: str
    model: str
    ignored: list[str]


def convert(request: Any, *, can_stream: bool) -> InferCall:  # noqa: ANN401
    """Convert a request.

    Args:
        request: a ``ModelInferRequest``.
        can_stream: whether it may stream, and does unless it says otherwise.

    Raises:
        RequestRefusal: it is invalid.
    """
    check_version(request.model_version)
    if not request.model_name:
        raise _refusal("model_name", "is empty; it must be that of a served model")
    for output in request.outputs:
        if output.name != OUTPUT:
            raise _refusal("outputs", f"names {output.name[:64]!r}; the output is {OUTPUT}")
    inputs = read_inputs(request, INPUTS)
    if "text_input" not in inputs:
        raise _refusal("text_input", "is missing: send the prompt as a BYTES tensor of shape [1]")
    given = _sampling(inputs.get("sampling_parameters", ""))
    given |= {name: _parameter(name, one) for name, one in request.parameters.items()}
    wants = inputs.get("stream", _typed("stream", given.pop("stream", can_stream)))
    if not isinstance(wants, bool):
        raise _refusal("stream", f"is {wants!r}; it must be a boolean")
    if wants and not can_stream:
        raise _refusal("stream", "is true; ModelInfer has one answer, ModelStreamInfer streams")
    body = {name: _typed(name, value) for name, value in given.items() if name in PARAMETERS}
    body |= {"model": request.model_name, "prompt": inputs["text_input"], "stream": wants}
    if wants:
        body["stream_options"] = {"include_usage": True}
    return InferCall(
        body=body,
        is_stream=wants,
        is_raw=bool(request.raw_input_contents),
        id=request.id,
        model=request.model_name,
        ignored=sorted(given.keys() - PARAMETERS),
    )


def check_version(version: str) -> None:
    """Refuse versions that no model has.

    Raises:
        RequestRefusal: there is no such version.
    """
    if version not in ("", VERSION):
        raise RequestRefusal(
            404,
            f"there is no version {version[:64]!r}; models have version {VERSION!r} alone",
            code="model_not_found",
        )


def _sampling(text: str) -> Fields:
    """Return the parameters of the input ``sampling_parameters``, a JSON object."""
    if not text.strip():
        return {}
    try:
        return decode_object(text.encode())
    except RequestRefusal as refusal:
        message = refusal.message.replace("the body", "the text", 1)
        raise RequestRefusal(
            400, f"sampling_parameters: {message}", param="sampling_parameters"
        ) from refusal


def _parameter(name: str, parameter: Any) -> bool | int | float | str:  # noqa: ANN401
    choice = parameter.WhichOneof("parameter_choice")
    if choice is None:
        raise _refusal(f"parameters.{name[:64]}", "has no value")
    value: bool | int | float | str = getattr(parameter, choice)
    return value


def _typed(name: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a parameter's value; clients of Triton send numbers and flags as strings, too."""
    if isinstance(value, float) and not math.isfinite(value):
        raise _refusal(name, f"is {value}; it must be a finite number")
    if not isinstance(value, str):
        return value
    if name in _FLAGS or name == "stream":
        return _WORDS.get(value.lower(), value)
    if name in _INTEGERS or name in _NUMBERS:
        try:
            number = int(value[:_LONGEST]) if name in _INTEGERS else float(value[:_LONGEST])
        except ValueError:
            number = math.nan
        if len(value) > _LONGEST or not math.isfinite(number):
            kind = "an integer" if name in _INTEGERS else "a finite number"
            raise _refusal(name, f"is {value[:_LONGEST]!r}; it must be {kind}")
        return number
    return value


def _refusal(place: str, reason: str) -> RequestRefusal:
    return RequestRefusal(400, f"{place} {reason}", param=place)
