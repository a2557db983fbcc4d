"""The tables of ``/v1/messages`` and ``/v1/messages/count_tokens``."""

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
    """Who asks."""

    user_id: Annotated[EndUser | None, Noted(), Field(description="The end user.")] = None


class OutputFormat(RequestTable):
    """What the answer must follow."""

    type: Literal["json_schema"]
    schema_: Annotated[Schema, Field(alias="schema")]


class OutputConfig(RequestTable):
    """How to answer."""

    effort: Annotated[Effort | None, Field(description="For the model's chat template.")] = None
    format: Annotated[
        OutputFormat | None, _GRAMMAR, Field(description="The answer is JSON of this schema.")
    ] = None
    task_budget: Annotated[Any, Ignored()] = None


class ThinkingOn(RequestTable):
    """What the model thinks is shown; how long it does is the model's."""

    type: Literal["enabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[Any, Ignored()] = None
    display: Annotated[Any, Ignored((None, "summarized"))] = None
    block_binding: Annotated[Any, Ignored()] = None


class ThinkingOff(RequestTable):
    """What the model thinks is left out, and its template is told not to think."""

    type: Literal["disabled"]


def _own_tool(kind: object) -> object:
    if isinstance(kind, str) and kind != "custom":
        raise PydanticCustomError(
            "server_tool",
            "tools that a server runs, such as '{kind}', are not there: send your own, 'custom'",
            {"kind": kind[:64]},
        )
    return kind


class AnthropicTool(RequestTable):
    """A tool that the client runs."""

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
    """This tool must be used."""

    type: Literal["tool"]
    name: ToolName
    disable_parallel_tool_use: bool | None = None


class PromptTable(RequestTable):
    """What a message is made of, and what its tokens are counted of."""

    model: Model
    messages: Annotated[
        Messages,
        Field(
            description="The conversation: `user`, `assistant` and `system`, of text, documents "
            "that are text, `thinking`, `tool_use` and `tool_result`. What a last message of the "
            "assistant's begins is continued."
        ),
    ]
    system: Annotated[str | Texts | None, Field(description="The system prompt.")] = None
    tools: Annotated[
        Annotated[list[AnthropicTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None,
        Costs("the prompt has them in it; strict ones keep answers to a grammar"),
        Field(description="Tools that the client runs."),
    ] = None
    tool_choice: Annotated[
        Annotated[ToolChoice | NamedChoice, ByType()] | None,
        Costs("all but `none` and `auto` keep answers to a grammar"),
        Field(
            description="`auto`, `any`, `none`, or `tool` with its `name`; with "
            "`disable_parallel_tool_use` one call at most."
        ),
    ] = None
    thinking: Annotated[
        Annotated[ThinkingOn | ThinkingOff, ByType()] | None,
        Field(
            description="`enabled`, `adaptive` or `between_tools` show what the model thinks, as "
            "without this field; `disabled` does not, and the model's template is told so."
        ),
    ] = None
    output_config: OutputConfig | None = None
    output_format: Annotated[
        OutputFormat | None, _GRAMMAR, Field(description="An older form of `output_config.format`.")
    ] = None
    cache_control: Hint = None
    mcp_servers: Annotated[Any, Unsupported("this server calls no other", (None, []))] = None
    betas: Annotated[Any, Ignored((None, []))] = None
    billing_policy: Annotated[Any, Ignored()] = None
    compaction: Annotated[Any, Ignored()] = None
    context_management: Annotated[Any, Ignored()] = None
    speed: Annotated[
        Literal["standard", "fast"] | None,
        Field(description="`fast` is the class of service `realtime`."),
    ] = None
    user_profile_id: Annotated[Any, Ignored()] = None
    workspace_id: Annotated[Any, Ignored()] = None


class CountRequest(PromptTable):
    """The tokens of a prompt."""


class MessagesRequest(PromptTable):
    """An answer to a conversation."""

    max_tokens: Annotated[
        MaxTokens,
        Field(
            description="Most tokens to generate, at least 1. More than the context has left is a "
            "bound: the answer ends with the context."
        ),
    ]
    stream: Annotated[bool | None, Field(description="Answer with server-sent events.")] = None
    stop_sequences: Annotated[
        StopStrings | None,
        Costs("text is searched token by token"),
        Field(description="Strings that end the answer."),
    ] = None
    temperature: Annotated[
        Temperature | None, Field(description="0 always takes the most likely token.")
    ] = None
    top_p: Annotated[
        TopP | None, Field(description="Sample among the most likely tokens of this mass.")
    ] = None
    top_k: Annotated[
        TopK | None, Field(description="Sample among this many tokens; 0 or -1 for all.")
    ] = None
    metadata: Metadata | None = None
    service_tier: Annotated[
        Literal["auto", "standard_only"] | None,
        Field(description="Class of service; `auto` is the key's own."),
    ] = None
    container: Annotated[Any, Ignored()] = None
    diagnostics: Annotated[Any, Ignored()] = None
    fallback_credit_token: Annotated[Any, Ignored()] = None
    fallbacks: Annotated[Any, Ignored((None, []))] = None
    inference_geo: Annotated[Any, Ignored()] = None
    thread: Annotated[Any, Ignored()] = None
