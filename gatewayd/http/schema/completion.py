"""The request of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gatewayd.http.schema.generation import GenerationTable
from gatewayd.http.schema.prompts import Ids, OneOrSeveral
from gatewayd.http.schema.structured import StructuredTable
from gatewayd_hooks.requests.fields import MAX_CHOICES, MAX_PROMPTS, NumLogprobs
from gatewayd_hooks.requests.tables import Costs, OrNull, Unsupported

DEFAULT_MAX_TOKENS = 16

Texts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
TokenLists = Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
Prompt = OneOrSeveral[str, Texts, TokenLists]


class CompletionRequest(GenerationTable, StructuredTable):
    """A completion of plain text."""

    prompt: Annotated[
        Prompt,
        Field(description="A text, texts, token ids, or lists of token ids."),
    ]
    echo: Annotated[
        bool | None,
        Costs("with `logprobs` the whole prompt, none of it from the cache"),
        Field(description="Put the prompt before the answer."),
    ] = None
    logprobs: Annotated[
        NumLogprobs | None,
        Costs("a sort of the vocabulary for each token"),
        Field(description="Alternatives for each token; 0 for the chosen one alone."),
    ] = None
    best_of: Annotated[
        Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None,
        Field(description="As `n`: nothing is generated only to be thrown away."),
    ] = None
    add_special_tokens: Annotated[
        bool, OrNull(), Field(description="Add what the tokenizer puts around a text, such as BOS.")
    ] = True
    suffix: Annotated[Any, Unsupported("the model does not fill in", (None, ""))] = None
