"""Schema of prompts: one or several texts or lists of token ids."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Discriminator, Field, Tag

from gatewayd_hooks.requests.fields import TokenIds

TextT = TypeVar("TextT")
TextsT = TypeVar("TextsT")
TokenListsT = TypeVar("TokenListsT")

Ids = Annotated[TokenIds, Field(min_length=1)]


def _kind(value: object) -> str | None:
    """Return the kind of input by its first entry, so that errors refer to that kind."""
    if isinstance(value, str):
        return "a text"
    if not isinstance(value, list):
        return None
    if value and isinstance(value[0], str):
        return "several texts"
    return "lists of ids" if value and isinstance(value[0], list) else "token ids"


OneOrSeveral = Annotated[
    Annotated[TextT, Tag("a text")]
    | Annotated[TextsT, Tag("several texts")]
    | Annotated[Ids, Tag("token ids")]
    | Annotated[TokenListsT, Tag("lists of ids")],
    Discriminator(
        _kind,
        custom_error_type="prompt_type",
        custom_error_message="must be a string or a list",
    ),
]
"""Union of a text, texts, token ids and lists of token ids, each with its own bounds."""
