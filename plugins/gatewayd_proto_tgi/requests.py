"""Converts requests of the generate API to the bodies of completions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gatewayd_hooks.protocols import RequestRefusal
from gatewayd_hooks.requests.checking import check
from gatewayd_proto_tgi.tables import (
    TgiCompatRequest,
    TgiGenerateRequest,
    TgiGrammar,
    TgiParameters,
)

Fields = dict[str, Any]

_SAME = ("top_k", "top_p", "repetition_penalty", "frequency_penalty", "stop")
RENAMED = {name: f"parameters.{name}" for name in (*_SAME, "temperature", "seed")} | {
    "max_tokens": "parameters.max_new_tokens",
    "prompt": "inputs",
    "n": "parameters.best_of",
    "logprobs": "parameters.top_n_tokens",
    "prompt_logprobs": "parameters.decoder_input_details",
    "structured_outputs": "parameters.grammar",
    "truncate_prompt_tokens": "parameters.truncate",
}
"""Fields of a completion, and their names in the generate API."""


class TgiRequest(NamedTuple):
    """Converted request.

    Attributes:
        body: of a completion, without the model's name.
        ignored: fields without effect.
        inputs: the prompt.
        is_stream: whether events are streamed.
        with_details: whether the answer has details.
        with_top: whether they have the most likely tokens.
        returns_inputs: whether the answer's text begins with the prompt.
        has_limit: whether the number of tokens is the client's.
        seed: of sampling; None for greedy decoding, and for several answers.
    """

    body: Fields
    ignored: list[str]
    inputs: str
    is_stream: bool
    with_details: bool
    with_top: bool
    returns_inputs: bool
    has_limit: bool
    seed: int | None


def convert(
    fields: Fields,
    table: type[TgiGenerateRequest | TgiCompatRequest],
    *,
    default_tokens: int,
    is_stream: bool = False,
) -> TgiRequest:
    """Convert a request.

    Args:
        fields: of the request.
        table: of its route.
        default_tokens: maximum number of tokens of a request without one.
        is_stream: whether the route streams in any case.

    Raises:
        RequestRefusal: a field is invalid, or two contradict each other.
    """
    request, ignored = check(table, fields)
    asked = request.parameters or TgiParameters()
    if isinstance(request, TgiCompatRequest):
        is_stream = bool(request.stream)
    _check(asked, is_stream=is_stream)
    seed = _seed(asked)
    # Each event of a stream has a token with its log-probability.
    with_tokens = is_stream or bool(asked.details) or (asked.best_of or 1) > 1
    body: Fields = {
        "prompt": request.inputs,
        "stream": is_stream,
        "max_tokens": asked.max_new_tokens or default_tokens,
        "temperature": _temperature(asked),
        "include_stop_str_in_output": True,
    }
    body |= {name: value for name in _SAME if (value := getattr(asked, name)) is not None}
    if seed is not None:
        body["seed"] = seed
    if with_tokens:
        body |= {"logprobs": asked.top_n_tokens or 0, "return_token_ids": True}
    if asked.decoder_input_details:
        body["prompt_logprobs"] = 0
    if asked.truncate is not None:
        body["truncate_prompt_tokens"] = asked.truncate
    if asked.best_of is not None:
        body["n"] = asked.best_of
    if asked.grammar is not None:
        body["structured_outputs"] = _grammar(asked.grammar)
    return TgiRequest(
        body=body,
        ignored=ignored,
        inputs=request.inputs,
        is_stream=is_stream,
        with_details=bool(asked.details),
        with_top=bool(asked.top_n_tokens),
        returns_inputs=bool(asked.return_full_text),
        has_limit=asked.max_new_tokens is not None,
        seed=seed,
    )


def _samples(asked: TgiParameters) -> bool:
    """Whether tokens are sampled: as there, also where a parameter of sampling is set."""
    if asked.temperature == 0:
        return False
    return (
        bool(asked.do_sample)
        or asked.temperature not in (None, 1)
        or asked.top_k is not None
        or asked.top_p not in (None, 1)
    )


def _temperature(asked: TgiParameters) -> float:
    if not _samples(asked):
        return 0.0
    return 1.0 if asked.temperature is None else asked.temperature


def _seed(asked: TgiParameters) -> int | None:
    if not _samples(asked) or (asked.best_of or 1) > 1:
        return None
    # Drawn here, so that an answer's details have the seed that repeats it.
    return secrets.randbits(63) if asked.seed is None else asked.seed


def _check(asked: TgiParameters, *, is_stream: bool) -> None:
    """Refuse combinations that have no meaning.

    Raises:
        RequestRefusal: there is one.
    """
    several = (asked.best_of or 1) > 1
    if several and is_stream:
        raise _refusal("best_of", "must be 1 for a stream")
    if several and not _samples(asked):
        raise _refusal("best_of", "needs sampling: set parameters.do_sample to true")
    if several and asked.seed is not None:
        raise _refusal("best_of", "must be 1 with parameters.seed, of which answers are the same")
    if asked.decoder_input_details and is_stream:
        raise _refusal("decoder_input_details", "must be false for a stream")
    if asked.decoder_input_details and not asked.details:
        raise _refusal("decoder_input_details", "needs parameters.details to be true")


def _grammar(grammar: TgiGrammar) -> Fields:
    value: Any = grammar.value
    if grammar.type == "regex":
        if not isinstance(value, str):
            raise _refusal("grammar.value", "must be a string for a regex")
        return {"regex": value}
    if grammar.type == "json_schema":
        value = value.get("schema") if isinstance(value, dict) else None
        if not isinstance(value, dict):
            raise _refusal("grammar.value", "must be an object with a schema for a json_schema")
    return {"json": value}


def _refusal(name: str, reason: str) -> RequestRefusal:
    place = f"parameters.{name}"
    return RequestRefusal(400, f"{place} {reason}", param=place)


@contextmanager
def translated() -> Iterator[None]:
    """Translate the fields of refusals raised in the context.

    Raises:
        RequestRefusal: there was one.
    """
    try:
        yield
    except RequestRefusal as refusal:
        name = (refusal.param or "").partition(".")[0].partition("[")[0]
        if name not in RENAMED:
            raise
        found = refusal.at(RENAMED[name])
        # Messages about the context name it in the middle.
        found.message = found.message.replace("max_tokens", "max_new_tokens")
        raise found from refusal
