"""Request schema of ``POST /v1/responses``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gatewayd.http.schema.batches import Metadata
from gatewayd_hooks.requests.fields import (
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_METADATA,
    MAX_TOOLS,
    CacheSalt,
    Effort,
    Finite,
    Model,
    QueueSeconds,
    Schema,
    ServiceTier,
    ToolName,
    TopP,
)
from gatewayd_hooks.requests.tables import (
    Acts,
    Ignored,
    Noted,
    OrNull,
    RequestTable,
    Unsupported,
    at_most,
)

LOGPROBS = "message.output_text.logprobs"
"""Supported value of ``include``."""
_ID = Annotated[str, Field(min_length=1, max_length=256)]


class ItemPart(RequestTable):
    """Content part of an item; images, audio and files are not supported."""

    type: Literal["input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"]
    text: str | None = None
    refusal: str | None = None
    annotations: Annotated[
        Any, Noted(), Field(description="Part of an earlier output, sent back.")
    ] = None
    logprobs: Annotated[
        Any, Noted(), Field(description="Part of an earlier output, sent back.")
    ] = None


Parts = Annotated[list[ItemPart], Field(fail_fast=True, max_length=1024)]


class InputItem(RequestTable):
    """A message, function call, function output, reasoning, or reference to a stored item."""

    type: Annotated[
        Literal["message", "function_call", "function_call_output", "reasoning", "item_reference"],
        OrNull(),
    ] = "message"
    id: _ID | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Parts | None = None
    call_id: _ID | None = None
    name: _ID | None = None
    arguments: str | None = None
    output: str | Parts | None = None
    summary: Parts | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    @property
    def missing(self) -> str | None:
        """Name of a missing field that this type of item requires, or None."""
        needed = {
            "message": ("role", "content"),
            "function_call": ("call_id", "name", "arguments"),
            "function_call_output": ("call_id", "output"),
            "reasoning": (),
            "item_reference": ("id",),
        }[self.type]
        return next((name for name in needed if getattr(self, name) is None), None)


class ResponseTool(RequestTable):
    """Function that the model may call; server-side tools are not supported."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedToolChoice(RequestTable):
    """Choice of a function by name."""

    type: Literal["function"]
    name: ToolName


class AllowedChoice(RequestTable):
    """Subset of the tools that the model may or must call."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[NamedToolChoice], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)
    ]


class TextFormat(RequestTable):
    """Format of the output text."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str | None, Field(max_length=256)] = None
    description: str | None = None
    schema_: Annotated[Schema | bool | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(RequestTable):
    """Options of the output text."""

    format: TextFormat | None = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, Noted()] = None


class ReasoningOptions(RequestTable):
    """Options of the reasoning."""

    effort: Effort | None = None
    summary: Annotated[Any, Noted()] = None
    generate_summary: Annotated[Any, Noted()] = None


class ResponseStreamOptions(RequestTable):
    """Options of a streamed response."""

    include_obfuscation: Annotated[bool | None, Noted()] = None


class InputTable(RequestTable):
    """Fields that make up the input of a response."""

    model: Annotated[
        Model | None, Field(description="Name of a served model; required to create a response.")
    ] = None
    input: Annotated[
        str | Annotated[list[InputItem], Field(fail_fast=True, max_length=MAX_MESSAGES)] | None,
        Field(
            description="A string, or items: `message`, `function_call`, `function_call_output`, "
            "`reasoning`, `item_reference`. Required unless `previous_response_id` is given."
        ),
    ] = None
    instructions: Annotated[
        str | None, Field(description="System message placed first; applies to this response only.")
    ] = None
    previous_response_id: Annotated[
        _ID | None, Field(description="Continue a stored response: its items come first.")
    ] = None
    tools: Annotated[
        Annotated[list[ResponseTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None,
        Field(description="Functions that the model may call; other tool types are refused."),
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"]
        | Annotated[NamedToolChoice | AllowedChoice, Field(discriminator="type")]
        | None,
        Field(description="`none`, `auto`, `required`, a function by name, or `allowed_tools`."),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Field(description="False: at most one call. Default: true.")
    ] = None
    text: Annotated[
        TextOptions | None,
        Field(description="`format`: `text`, `json_object`, or `json_schema` with a `schema`."),
    ] = None
    reasoning: Annotated[
        ReasoningOptions | None,
        Field(description="`effort` is passed to the model's chat template."),
    ] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        Field(
            description="`auto`: drop the oldest turns of a conversation that exceeds the "
            "context. Default: `disabled`, which refuses it."
        ),
    ] = None
    conversation: Annotated[Any, Unsupported("use `previous_response_id`")] = None


class InputTokensRequest(InputTable):
    """Request to count the input tokens of a response."""

    personality: Annotated[Any, Ignored()] = None


class ResponseRequest(InputTable):
    """Request to create a response."""

    model: Model
    store: Annotated[
        bool | None,
        Field(description="Store the response for `[responses] keep_days`. Default: true."),
    ] = None
    stream: Annotated[
        bool | None, Field(description="Stream the answer as server-sent events.")
    ] = None
    stream_options: Annotated[ResponseStreamOptions | None, Noted()] = None
    background: Annotated[
        bool | None,
        Field(
            description="Run in the background; the client polls or reconnects later. "
            "Needs `store`."
        ),
    ] = None
    max_output_tokens: Annotated[
        Annotated[int, Field(ge=1, le=2**63 - 1)] | None,
        Field(
            description="Maximum number of tokens to generate. Default: the rest of the context."
        ),
    ] = None
    temperature: Annotated[
        Annotated[Finite, Field(ge=0, le=2)] | None,
        Field(description="Sampling temperature; 0 is greedy decoding."),
    ] = None
    top_p: Annotated[
        TopP | None,
        Field(
            description="Nucleus sampling: sample from the most likely tokens of this "
            "total probability."
        ),
    ] = None
    include: Annotated[
        list[Annotated[str, Field(max_length=64)]] | None,
        Acts((LOGPROBS,)),
        Field(
            max_length=16,
            description="`message.output_text.logprobs` returns log-probabilities; others "
            "are ignored.",
        ),
    ] = None
    top_logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None,
        Field(description="Number of most likely alternatives per token."),
    ] = None
    metadata: Annotated[
        Metadata | None, at_most(MAX_METADATA), Field(description="Returned with the response.")
    ] = None
    priority: Annotated[
        Literal["realtime", "standard", "batch"] | None,
        Field(description="Priority class; overrides `service_tier`."),
    ] = None
    service_tier: Annotated[ServiceTier | None, Field(description="As in chat.")] = None
    user: Annotated[
        str | None,
        Noted(),
        Field(max_length=512, description="Identifier of the end user; not used."),
    ] = None
    queue_timeout: Annotated[
        QueueSeconds | None,
        Field(description="As in chat; a background response ends as `failed`, with the message."),
    ] = None
    cache_salt: Annotated[CacheSalt | None, Field(description="As in chat.")] = None
    prompt_cache_key: Annotated[str | None, Field(max_length=1024, description="As in chat.")] = (
        None
    )
    prompt_cache_retention: Annotated[
        Literal["in_memory", "in-memory", "24h"] | None, Field(description="As in chat.")
    ] = None
    safety_identifier: Annotated[Any, Ignored()] = None
    prompt_cache_options: Annotated[Any, Ignored()] = None
    max_tool_calls: Annotated[Any, Ignored()] = None
    moderation: Annotated[Any, Ignored()] = None
    prompt: Annotated[Any, Unsupported("the server does not store prompt templates")] = None
    context_management: Annotated[
        Any, Unsupported("the server does not compact conversations", (None, []))
    ] = None
    image: Annotated[Any, Unsupported("output is text only")] = None
