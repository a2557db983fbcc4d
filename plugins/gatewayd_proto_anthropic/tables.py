"""Tables of ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from gatewayd_hooks.requests.fields import (
    MAX_TOOLS,
    Effort,
    EndUser,
    MaxTokens,
    Model,
    Schema,
    StopStrings,
    Temperature,
    ToolName,
    TopK,
    TopP,
)
from gatewayd_hooks.requests.tables import ByType, Costs, Ignored, Noted, RequestTable, Unsupported
from gatewayd_proto_anthropic.content import Hint, Messages, Texts

_GRAMMAR = Costs("a grammar to compile, and a mask of the vocabulary for each token")


class Metadata(RequestTable):
    """End user of the request."""

    user_id: Annotated[
        EndUser | None, Noted(), Field(description="Identifier of the end user; not used.")
    ] = None


class OutputFormat(RequestTable):
    """Constraint on the answer."""

    type: Literal["json_schema"]
    schema_: Annotated[Schema, Field(alias="schema")]


class OutputConfig(RequestTable):
    """Output options."""

    effort: Annotated[Effort | None, Field(description="Passed to the model's chat template.")] = (
        None
    )
    format: Annotated[
        OutputFormat | None,
        _GRAMMAR,
        Field(description="Constrain the answer to JSON of this schema."),
    ] = None
    task_budget: Annotated[Any, Ignored()] = None


class ThinkingOn(RequestTable):
    """Reasoning is included; the model determines its length."""

    type: Literal["enabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[Any, Ignored()] = None
    display: Annotated[Any, Ignored((None, "summarized"))] = None
    block_binding: Annotated[Any, Ignored()] = None


class ThinkingOff(RequestTable):
    """Reasoning is omitted, and disabled in the chat template."""

    type: Literal["disabled"]


def _own_tool(kind: object) -> object:
    if isinstance(kind, str) and kind != "custom":
        raise PydanticCustomError(
            "server_tool",
            "server tools such as '{kind}' are not supported: send client tools of type 'custom'",
            {"kind": kind[:64]},
        )
    return kind


class AnthropicTool(RequestTable):
    """Tool that the client runs."""

    type: Annotated[Literal["custom"] | None, BeforeValidator(_own_tool)] = None
    name: ToolName
    description: str | None = None
    input_schema: Schema
    strict: bool | None = None
    allowed_callers: Annotated[Any, Ignored((None, [], ["direct"]))] = None
    defer_loading: Annotated[Any, Ignored((None, False))] = None
    eager_input_streaming: Annotated[Any, Ignored((None, False))] = None
    input_examples: Annotated[Any, Ignored((None, []))] = None
    cache_control: Hint = None


class ToolChoice(RequestTable):
    """Whether a tool must be used."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None


class NamedChoice(RequestTable):
    """The given tool must be used."""

    type: Literal["tool"]
    name: ToolName
    disable_parallel_tool_use: bool | None = None


class PromptTable(RequestTable):
    """Fields from which a prompt is made, whether it is answered or its tokens are counted."""

    model: Model
    messages: Annotated[
        Messages,
        Field(
            description="The conversation: `user`, `assistant` and `system`, of text, documents "
            "that are text, `thinking`, `tool_use` and `tool_result`. A last message of the "
            "assistant is continued."
        ),
    ]
    system: Annotated[str | Texts | None, Field(description="The system prompt.")] = None
    tools: Annotated[
        Annotated[list[AnthropicTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None,
        Costs("their tokens in the prompt; strict ones constrain decoding by a grammar"),
        Field(description="Client tools that the model may call."),
    ] = None
    tool_choice: Annotated[
        Annotated[ToolChoice | NamedChoice, ByType()] | None,
        Costs("a grammar, for all but `none` and `auto`"),
        Field(
            description="`auto`, `any`, `none`, or `tool` with its `name`; with "
            "`disable_parallel_tool_use` at most one call."
        ),
    ] = None
    thinking: Annotated[
        Annotated[ThinkingOn | ThinkingOff, ByType()] | None,
        Field(
            description="`enabled`, `adaptive` and `between_tools` return the model's "
            "reasoning, which is the default; `disabled` omits it and is passed "
            "to the chat template."
        ),
    ] = None
    output_config: OutputConfig | None = None
    output_format: Annotated[
        OutputFormat | None,
        _GRAMMAR,
        Field(description="Deprecated form of `output_config.format`."),
    ] = None
    cache_control: Hint = None
    mcp_servers: Annotated[
        Any, Unsupported("this server does not call other servers", (None, []))
    ] = None
    betas: Annotated[Any, Ignored((None, []))] = None
    billing_policy: Annotated[Any, Ignored()] = None
    compaction: Annotated[Any, Ignored()] = None
    context_management: Annotated[Any, Ignored()] = None
    speed: Annotated[
        Literal["standard", "fast"] | None,
        Field(description="`fast` is the priority class `realtime`."),
    ] = None
    user_profile_id: Annotated[Any, Ignored()] = None
    workspace_id: Annotated[Any, Ignored()] = None


class CountRequest(PromptTable):
    """Request to count the tokens of a prompt."""


class MessagesRequest(PromptTable):
    """Request for an answer to a conversation."""

    max_tokens: Annotated[
        MaxTokens,
        Field(
            description="Maximum number of tokens to generate, at least 1. A larger value "
            "than the rest of the context is lowered to it."
        ),
    ]
    stream: Annotated[
        bool | None, Field(description="Stream the answer as server-sent events.")
    ] = None
    stop_sequences: Annotated[
        StopStrings | None,
        Costs("text is searched token by token"),
        Field(description="Stop strings that end the answer."),
    ] = None
    temperature: Annotated[
        Temperature | None, Field(description="Sampling temperature; 0 is greedy decoding.")
    ] = None
    top_p: Annotated[
        TopP | None,
        Field(
            description="Nucleus sampling: sample from the most likely "
            "tokens of this total probability."
        ),
    ] = None
    top_k: Annotated[
        TopK | None,
        Field(description="Sample from this number of most likely tokens; 0 or -1: all."),
    ] = None
    metadata: Metadata | None = None
    service_tier: Annotated[
        Literal["auto", "standard_only"] | None,
        Field(description="Priority class; `auto` is the default of the key."),
    ] = None
    container: Annotated[Any, Ignored()] = None
    diagnostics: Annotated[Any, Ignored()] = None
    fallback_credit_token: Annotated[Any, Ignored()] = None
    fallbacks: Annotated[Any, Ignored((None, []))] = None
    inference_geo: Annotated[Any, Ignored()] = None
    thread: Annotated[Any, Ignored()] = None
