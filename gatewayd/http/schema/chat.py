"""Request schema of ``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gatewayd.http.schema.generation import GenerationTable
from gatewayd.http.schema.messages import Messages
from gatewayd.http.schema.structured import StructuredTable
from gatewayd.http.schema.tools import FunctionChoice, FunctionSpec, ToolChoice, ToolSpec
from gatewayd_hooks.requests.fields import (
    MAX_METADATA,
    MAX_TOOLS,
    Effort,
    Finite,
    MaxTokens,
    NumLogprobs,
)
from gatewayd_hooks.requests.tables import Costs, Ignored, Noted, Unsupported, at_most

_TEXT_ONLY = "output is text only"
MAX_ARGUMENTS = 16

Scalar = bool | int | Finite | Annotated[str, Field(max_length=4096)] | None
TemplateValue = Scalar | Annotated[list[Scalar], Field(fail_fast=True, max_length=64)]
TemplateArguments = Annotated[
    Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")], TemplateValue],
        Field(max_length=MAX_ARGUMENTS),
    ]
    | None,
    at_most(MAX_ARGUMENTS),
]
Tools = Annotated[list[ToolSpec], Field(fail_fast=True, max_length=MAX_TOOLS)]


class ChatRequest(GenerationTable, StructuredTable):
    """Request to create a chat completion."""

    messages: Annotated[
        Messages,
        Field(description="The conversation so far."),
    ]
    max_completion_tokens: Annotated[
        MaxTokens | None,
        Field(
            description="As `max_tokens`, over which it takes precedence. Default: the "
            "rest of the context."
        ),
    ] = None
    logprobs: Annotated[
        bool | None, Field(description="Return the log-probability of each token.")
    ] = None
    top_logprobs: Annotated[
        NumLogprobs | None,
        Costs("a sort of the vocabulary for each token"),
        Field(description="Number of most likely alternatives per token; needs `logprobs`."),
    ] = None
    add_generation_prompt: Annotated[
        bool | None,
        Field(description="False: do not append the generation prompt of the assistant."),
    ] = None
    continue_final_message: Annotated[
        bool | None,
        Field(
            description="Continue the last message, which must be an assistant's; implies "
            "`add_generation_prompt` false."
        ),
    ] = None
    echo: Annotated[
        bool | None,
        Field(description="Prepend the continued message to the answer."),
    ] = None
    metadata: Annotated[
        Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None,
        Noted(),
        at_most(MAX_METADATA),
    ] = None
    safety_identifier: Annotated[Any, Ignored()] = None
    prompt_cache_options: Annotated[Any, Ignored()] = None
    prediction: Annotated[Any, Ignored()] = None
    verbosity: Annotated[Any, Ignored()] = None
    moderation: Annotated[Any, Ignored()] = None
    store: Annotated[
        bool | None,
        Ignored((None, False)),
        Field(description="Chat completions are not stored; use /v1/responses."),
    ] = None

    tools: Annotated[
        Tools | None,
        Costs("their tokens in the prompt; strict ones constrain decoding by a grammar"),
        Field(description="Functions that the model may call."),
    ] = None
    tool_choice: Annotated[
        ToolChoice | None,
        Costs("a grammar, for all but `none` and `auto`"),
        Field(
            description="`none`, `auto`, `required` (also `any`), a tool by name, or "
            "`allowed_tools`. Default: `auto` if there are tools."
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Field(description="False: at most one tool call per answer.")
    ] = None
    functions: Annotated[
        Annotated[list[FunctionSpec], Field(fail_fast=True, max_length=MAX_TOOLS)] | None,
        Field(description="Deprecated form of `tools`; at most one call per answer."),
    ] = None
    function_call: Annotated[
        FunctionChoice | None, Field(description="Deprecated form of `tool_choice`.")
    ] = None
    reasoning_effort: Annotated[
        Effort | None,
        Field(
            description="Passed to the model's chat template, which may ignore it. `none` "
            "also sets `enable_thinking` to false."
        ),
    ] = None
    enable_thinking: Annotated[
        bool | None, Field(description="Passed to the model's chat template.")
    ] = None
    include_reasoning: Annotated[
        bool | None, Field(description="False: omit the reasoning from the answer.")
    ] = None
    separate_reasoning: Annotated[
        bool | None, Field(description="False: leave the reasoning in the content, with its tags.")
    ] = None
    chat_template_kwargs: Annotated[
        TemplateArguments,
        Field(
            description="Arguments of the model's chat template; they override other fields for it."
        ),
    ] = None

    audio: Annotated[Any, Unsupported(_TEXT_ONLY)] = None
    modalities: Annotated[Any, Unsupported(_TEXT_ONLY, (None, ["text"]))] = None
    web_search_options: Annotated[Any, Unsupported("the server does not fetch documents")] = None
    chat_template: Annotated[
        Any, Unsupported("a chat_template in the request is refused; the model's is used")
    ] = None
    documents: Annotated[Any, Unsupported("put documents into a message", (None, []))] = None
