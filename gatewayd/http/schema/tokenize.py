"""The requests of ``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gatewayd.http.schema.fields import Model, RequestTable, TokenIds, Unsupported
from gatewayd.http.schema.messages import Messages
from gatewayd.http.schema.nulls import OrNull


class TokenizeRequest(RequestTable):
    """Text to token ids: of a prompt or of messages."""

    model: Annotated[Model | None, Field(description="A served model's name.")] = None
    prompt: Annotated[str | None, Field(description="Either this or `messages`.")] = None
    messages: Annotated[
        Messages | None,
        Field(description="Rendered as for a chat."),
    ] = None
    add_special_tokens: Annotated[
        bool,
        OrNull(),
        Field(description="For a prompt: add what the tokenizer puts around a text."),
    ] = True
    add_generation_prompt: Annotated[
        bool, OrNull(), Field(description="For messages: end with the beginning of an answer.")
    ] = True
    return_token_strs: Annotated[
        bool | None, Field(description="Give the text of each token too.")
    ] = None
    chat_template: Annotated[
        Any, Unsupported("a request's own chat_template is refused; the model's is used")
    ] = None


class DetokenizeRequest(RequestTable):
    """Token ids to text."""

    model: Annotated[Model | None, Field(description="A served model's name.")] = None
    tokens: Annotated[
        TokenIds, Field(description="Ids of the vocabulary; at most the model's context.")
    ]
