"""The request of ``POST /v1/embeddings``, and what all routes of vectors have in common."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gatewayd.http.schema.prompts import Ids, OneOrSeveral
from gatewayd_hooks.requests.fields import (
    MAX_INPUTS,
    MAX_INT,
    CacheSalt,
    Model,
    Priority,
    PriorityNumber,
    ServiceTier,
)
from gatewayd_hooks.requests.tables import Costs, Noted, OrNull, RequestTable, Unsupported

InputText = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[InputText], Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS)]
TokenLists = Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS)]
Input = OneOrSeveral[InputText, Texts, TokenLists]


class PoolingTable(RequestTable):
    """How texts become vectors."""

    model: Annotated[Model | None, Field(description="A served model's name.")] = None
    pooling: Annotated[
        Literal["mean", "last"] | None,
        Costs("with `mean` the whole text, none of it from the cache"),
        Field(
            description="Of the last layer's hidden states: `mean`, the default, of all tokens, or "
            "the `last` one's."
        ),
    ] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Field(ge=-1, le=MAX_INT)] | None,
        Field(
            description="Cut longer texts to so many tokens; -1 to what the model takes. Without "
            "it they are refused."
        ),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"] | None,
        Field(description="Where they are cut; default: `right`, so that the beginning stays."),
    ] = None
    add_special_tokens: Annotated[
        bool, OrNull(), Field(description="Add what the tokenizer puts around a text, such as BOS.")
    ] = True
    priority: Annotated[
        Priority | PriorityNumber | None,
        Field(description="Class of service, as in chat; over `service_tier`."),
    ] = None
    service_tier: Annotated[ServiceTier | None, Field(description="As in chat.")] = None
    cache_salt: Annotated[
        CacheSalt | None,
        Field(description="Only requests with the same salt share what was computed."),
    ] = None
    user: Annotated[str | None, Noted(), Field(max_length=512, description="The end user.")] = None


class EmbeddingRequest(PoolingTable):
    """Texts to vectors."""

    model: Model
    input: Annotated[Input, Field(description="A text, texts, token ids, or lists of token ids.")]
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Field(description="`base64` has float32, little-endian; default: `float`."),
    ] = None
    dimensions: Annotated[
        Annotated[int, Field(ge=1, le=MAX_INT)] | None,
        Field(description="Keep so many numbers of each vector, at most the model's hidden size."),
    ] = None
    normalize: Annotated[
        bool | None, Field(description="Bring each vector to length 1; default: true.")
    ] = None
    messages: Annotated[Any, Unsupported("send texts in `input`")] = None
