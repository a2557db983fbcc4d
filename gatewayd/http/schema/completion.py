"""The request of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gatewayd.http.schema.fields import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_PROMPTS,
    GenerationTable,
    TokenId,
    Unsupported,
)

DEFAULT_MAX_TOKENS = 16

TokenIds = Annotated[list[TokenId], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
TokenLists = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]


class CompletionRequest(GenerationTable):
    """A completion of plain text."""

    prompt: Annotated[
        str | Texts | TokenIds | TokenLists,
        Field(description="A text, texts, token ids, or lists of token ids."),
    ]
    echo: Annotated[bool | None, Field(description="Put the prompt before the answer.")] = None
    logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None,
        Field(description="Alternatives for each token; 0 for the chosen one alone."),
    ] = None
    best_of: Annotated[
        Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None,
        Field(description="At most `n`: nothing is generated only to be thrown away."),
    ] = None
    add_special_tokens: Annotated[
        bool, Field(description="Add what the tokenizer puts around a text, such as BOS.")
    ] = True
    suffix: Annotated[Any, Unsupported("the model does not fill in", (None, ""))] = None
    response_format: Annotated[Any, Unsupported("answers are text", (None, {"type": "text"}))] = (
        None
    )
