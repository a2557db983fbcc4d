"""Request schema of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gatewayd.http.schema.generation import GenerationTable
from gatewayd.http.schema.prompts import Ids, OneOrSeveral
from gatewayd.http.schema.structured import StructuredTable
from gatewayd_hooks.requests.fields import MAX_CHOICES, MAX_INT, MAX_PROMPTS, NumLogprobs
from gatewayd_hooks.requests.tables import Costs, OrNull, Unsupported

DEFAULT_MAX_TOKENS = 16

Texts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
TokenLists = Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
Prompt = OneOrSeveral[str, Texts, TokenLists]


class CompletionRequest(GenerationTable, StructuredTable):
    """Request to create a text completion."""

    prompt: Annotated[
        Prompt,
        Field(description="A string, strings, token ids, or lists of token ids."),
    ]
    echo: Annotated[
        bool | None,
        Costs("prefill of the whole prompt without the prefix cache, with `logprobs`"),
        Field(description="Prepend the prompt to the answer."),
    ] = None
    logprobs: Annotated[
        NumLogprobs | None,
        Costs("a sort of the vocabulary for each token"),
        Field(
            description="Number of most likely alternatives per token; 0: only the sampled token."
        ),
    ] = None
    best_of: Annotated[
        Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None,
        Field(description="Equal to `n`: no candidates are generated to be discarded."),
    ] = None
    add_special_tokens: Annotated[
        bool, OrNull(), Field(description="Add special tokens such as BOS.")
    ] = True
    truncate_prompt_tokens: Annotated[
        Annotated[int, Field(ge=-1, le=MAX_INT)] | None,
        Field(
            description="Keep only this number of the last tokens of a longer prompt; -1: as many "
            "as leave one for the answer. Default: longer prompts are refused."
        ),
    ] = None
    suffix: Annotated[Any, Unsupported("the model does not support infilling", (None, ""))] = None
