"""Request schema of ``POST /v1/embeddings``, and fields common to all pooling routes."""

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
    """Fields common to all requests that pool texts to vectors."""

    model: Annotated[Model | None, Field(description="Name of a served model.")] = None
    pooling: Annotated[
        Literal["mean", "last"] | None,
        Costs("prefill of the whole text without the prefix cache, with `mean`"),
        Field(
            description="Pooling of the last layer's hidden states: `mean` of all tokens "
            "(default), or the `last` token."
        ),
    ] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Field(ge=-1, le=MAX_INT)] | None,
        Field(
            description="Truncate longer texts to this number of tokens; -1: to the model's "
            "context length. Default: longer texts are refused."
        ),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"] | None,
        Field(description="Side that is cut off. Default: `right`, which keeps the beginning."),
    ] = None
    add_special_tokens: Annotated[
        bool, OrNull(), Field(description="Add special tokens such as BOS.")
    ] = True
    priority: Annotated[
        Priority | PriorityNumber | None,
        Field(description="Priority class, as in chat; overrides `service_tier`."),
    ] = None
    service_tier: Annotated[ServiceTier | None, Field(description="As in chat.")] = None
    cache_salt: Annotated[
        CacheSalt | None,
        Field(description="Only requests with the same salt share the prefix cache."),
    ] = None
    user: Annotated[
        str | None,
        Noted(),
        Field(max_length=512, description="Identifier of the end user; not used."),
    ] = None


class EmbeddingRequest(PoolingTable):
    """Request to embed texts."""

    model: Model
    input: Annotated[
        Input, Field(description="A string, strings, token ids, or lists of token ids.")
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Field(description="`float` (default), or `base64` of little-endian float32."),
    ] = None
    dimensions: Annotated[
        Annotated[int, Field(ge=1, le=MAX_INT)] | None,
        Field(
            description="Truncate each vector to this number of dimensions, at most the "
            "hidden size of the model."
        ),
    ] = None
    normalize: Annotated[
        bool | None, Field(description="Normalize vectors to length 1. Default: true.")
    ] = None
    messages: Annotated[Any, Unsupported("send texts in `input`")] = None
