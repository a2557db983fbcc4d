"""What is to be generated: ``gen`` and ``select``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gatewayd_lang.pieces import Expression

DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True)
class Gen(Expression):
    """A place that the model fills in.

    Attributes:
        name: under which the text is found in the state.
        fields: of the request to the completions API.
        choices: texts of which the answer is one; none where it is free.
        is_bound: whether the answer follows an expression, a schema, choices or a grammar, so that
            one that was cut off is of no use.
    """

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    is_bound: bool = False


def gen(
    name: str,
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    regex: str | None = None,
    json_schema: Mapping[str, Any] | str | type | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    **fields: Any,  # noqa: ANN401 - whatever a field of the API takes
) -> Gen:
    """A place that the model fills in.

    ``s += gen("city", stop=".")``, then ``s["city"]``.

    Args:
        name: under which the text is found in the state.
        max_tokens: at most so many, 128 if nothing is said; as many as they need for choices.
        temperature: 0 for the most likely tokens; the server's default if nothing is said.
        top_p: sample among the most likely tokens of this mass.
        top_k: sample among this many tokens.
        min_p: least probability as a share of the largest.
        stop: strings that end the text, which does not have them.
        seed: repeats the text.
        regex: an expression that the whole text matches.
        json_schema: the text is JSON of this schema: a dictionary, its JSON, or a class with
            ``model_json_schema()``, as pydantic's have.
        choices: the text is one of these.
        grammar: the text follows this grammar, in the notation of the server's guide.
        **fields: any other of ``/v1/completions``, such as ``frequency_penalty`` or ``priority``.

    Raises:
        ValueError: two of ``regex``, ``json_schema``, ``choices`` and ``grammar``, or no choices.
    """
    guides = {
        "regex": regex,
        "json": None if json_schema is None else _schema(json_schema),
        "choice": None if choices is None else list(choices),
        "grammar": grammar,
    }
    asked = {form: value for form, value in guides.items() if value is not None}
    if len(asked) > 1:
        raise ValueError(f"gen {name!r} has {' and '.join(asked)}; it can follow one of them")
    if choices is not None and not all([len(choices), *choices]):
        raise ValueError(f"gen {name!r} needs choices, and none that is empty")
    if max_tokens is None:
        # No text has more tokens than bytes; one more for the end.
        longest = max([len(choice.encode()) for choice in choices or ()], default=0)
        max_tokens = longest + 1 if choices else DEFAULT_MAX_TOKENS
    named = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "stop": [stop] if isinstance(stop, str) else stop and list(stop),
        "seed": seed,
        "structured_outputs": asked or None,
    }
    given = {key: value for key, value in named.items() if value is not None}
    return Gen(name, {**fields, **given}, tuple(choices or ()), bool(asked))


def select(name: str, choices: Sequence[str]) -> Gen:
    """One of several texts, the likeliest token by token.

    A step takes the token that the model likes best among those that lead to a choice. The prefix
    stays in the server's cache, and no choice costs a request of its own.
    """
    return gen(name, choices=choices, temperature=0)


def _schema(schema: Mapping[str, Any] | str | type) -> object:
    if isinstance(schema, str):
        return json.loads(schema)
    if isinstance(schema, type):
        return schema.model_json_schema()  # type: ignore[attr-defined]
    return dict(schema)
