"""Request schemas of ``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gatewayd.http.schema.chat import TemplateArguments, Tools
from gatewayd.http.schema.messages import Messages
from gatewayd.http.schema.tools import ToolChoice
from gatewayd_hooks.requests.fields import Effort, Model, TokenIds
from gatewayd_hooks.requests.tables import OrNull, RequestTable, Unsupported


class TokenizeRequest(RequestTable):
    """Request to tokenize a prompt or messages."""

    model: Annotated[Model | None, Field(description="Name of a served model.")] = None
    prompt: Annotated[
        str | None, Field(description="Text to tokenize; either this or `messages`.")
    ] = None
    messages: Annotated[
        Messages | None,
        Field(description="Messages to render and tokenize, as for a chat."),
    ] = None
    add_special_tokens: Annotated[
        bool,
        OrNull(),
        Field(description="For a prompt: add special tokens such as BOS."),
    ] = True
    add_generation_prompt: Annotated[
        bool | None,
        Field(
            description="For messages: append the generation prompt of the assistant. "
            "Default: true."
        ),
    ] = None
    continue_final_message: Annotated[
        bool | None, Field(description="For messages: continue the last message.")
    ] = None
    tools: Annotated[Tools | None, Field(description="For messages: as in a chat.")] = None
    tool_choice: Annotated[
        ToolChoice | None, Field(description="`none`: omit the tools from the prompt.")
    ] = None
    reasoning_effort: Annotated[Effort | None, Field(description="As in a chat.")] = None
    enable_thinking: Annotated[bool | None, Field(description="As in a chat.")] = None
    chat_template_kwargs: Annotated[
        TemplateArguments, Field(description="Arguments of the model's chat template.")
    ] = None
    return_token_strs: Annotated[
        bool | None, Field(description="Return the text of each token too.")
    ] = None
    chat_template: Annotated[
        Any, Unsupported("a chat_template in the request is refused; the model's is used")
    ] = None


class DetokenizeRequest(RequestTable):
    """Request to detokenize token ids."""

    model: Annotated[Model | None, Field(description="Name of a served model.")] = None
    tokens: Annotated[TokenIds, Field(description="Token ids; at most the model's context length.")]
