"""Tables of request bodies of Ollama's routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gatewayd_hooks.requests.fields import (
    MAX_CALLS,
    MAX_INPUTS,
    MAX_INT,
    MAX_MESSAGES,
    MAX_TOOLS,
    CallName,
    Model,
    Schema,
    ToolName,
    few_entries,
)
from gatewayd_hooks.requests.tables import Costs, Ignored, Noted, OrNull, RequestTable, Unsupported
from gatewayd_proto_ollama.options import AnswerTable, Idle, OrEmpty, Whole

Images = Annotated[Any, Unsupported("this model cannot read images", (None, []))]
_ID = Annotated[str, Field(max_length=256)]
StoredName = Annotated[str, Field(min_length=1, max_length=512)]


class OllamaCalledFunction(RequestTable):
    """Function that was called, with its arguments."""

    name: CallName
    arguments: Annotated[dict[str, Any], OrNull()] = Field(default_factory=dict)
    index: Annotated[Any, Noted()] = None


class OllamaToolCall(RequestTable):
    """Tool call of an earlier answer."""

    id: Annotated[_ID | None, OrEmpty] = None
    type: Annotated[Any, Noted()] = None
    function: OllamaCalledFunction


class OllamaMessage(RequestTable):
    """Message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    thinking: Annotated[str | None, Field(description="Reasoning of the assistant.")] = None
    tool_calls: Annotated[
        Annotated[list[OllamaToolCall], Field(fail_fast=True, max_length=MAX_CALLS)] | None,
        Field(description="Tool calls made by the assistant."),
    ] = None
    tool_call_id: Annotated[
        _ID | None, OrEmpty, Field(description="Id of the tool call that a `tool` message answers.")
    ] = None
    tool_name: Annotated[
        _ID | None,
        OrEmpty,
        Field(
            description="The same by tool name; without both, the next unanswered call in order."
        ),
    ] = None
    name: Annotated[_ID | None, OrEmpty, Field(description="Alias of `tool_name`.")] = None
    images: Images = None


class Function(RequestTable):
    """Function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: Annotated[Schema | None, Field(description="JSON schema of the arguments.")] = None
    strict: bool | None = None


class OllamaTool(RequestTable):
    """Tool; only functions are supported."""

    type: Annotated[Literal["function"] | None, OrEmpty] = None
    function: Function


class OllamaChatRequest(AnswerTable):
    """Request of ``/api/chat``."""

    messages: Annotated[
        Annotated[
            list[OllamaMessage], Field(fail_fast=True, max_length=MAX_MESSAGES), few_entries()
        ]
        | None,
        Field(
            description="The conversation; if missing, only loads the model. "
            "A last message of the assistant is continued."
        ),
    ] = None
    tools: Annotated[
        Annotated[list[OllamaTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None,
        Costs("their tokens in the prompt"),
        Field(description="Functions that the model may call."),
    ] = None


class GenerateRequest(AnswerTable):
    """Request of ``/api/generate``."""

    prompt: Annotated[
        str | None, Field(description="If missing or empty, only loads the model.")
    ] = None
    system: Annotated[str | None, Field(description="The system prompt; not with `raw`.")] = None
    raw: Annotated[
        bool | None,
        Field(description="Use the prompt as it is, without the model's chat template."),
    ] = None
    suffix: Annotated[Any, Unsupported("the model does not support infilling", (None, ""))] = None
    template: Annotated[
        Any, Unsupported("the model's own is used; with raw there is none", (None, ""))
    ] = None
    context: Annotated[
        Any, Unsupported("use /api/chat and send the messages so far", (None, []))
    ] = None
    images: Images = None
    width: Idle = None
    height: Idle = None
    steps: Idle = None


class VectorTable(RequestTable):
    """Fields that embedding requests share."""

    model: Model
    options: Annotated[Any, Ignored((None, {}, []))] = None
    keep_alive: Annotated[
        Any, Ignored(), Field(description="Accepted and ignored: the model stays loaded.")
    ] = None


class EmbedRequest(VectorTable):
    """Request of ``/api/embed``."""

    input: Annotated[
        str
        | Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(fail_fast=True, max_length=MAX_INPUTS),
        ]
        | None,
        Field(description="A string or strings; if missing, only loads the model."),
    ] = None
    truncate: Annotated[
        bool | None,
        Field(description="False: refuse texts that do not fit the context. Default: true."),
    ] = None
    dimensions: Annotated[
        Annotated[int, Field(ge=0, le=MAX_INT)] | None,
        Whole,
        Field(description="Truncate each vector to this number of dimensions; 0: all."),
    ] = None


class EmbeddingsRequest(VectorTable):
    """Request of ``/api/embeddings``; the vector is not normalized."""

    prompt: Annotated[
        str | None, Field(description="If missing or empty, only loads the model.")
    ] = None


class ShowRequest(RequestTable):
    """Request of ``/api/show``."""

    model: Annotated[Model | None, OrEmpty] = None
    name: Annotated[Model | None, OrEmpty, Field(description="Deprecated form of `model`.")] = None
    verbose: Annotated[Any, Ignored((None, False))] = None


class StoredTable(RequestTable):
    """Fields that requests about a model of the store share."""

    model: Annotated[
        StoredName | None,
        OrEmpty,
        Field(description="`ORG/NAME` of the Hub, `ORG/NAME@REVISION`, `ORG/NAME:Q4_K_M`."),
    ] = None
    name: Annotated[
        StoredName | None, OrEmpty, Field(description="Deprecated form of `model`.")
    ] = None


class PullRequest(StoredTable):
    """Request of ``/api/pull``."""

    stream: Annotated[bool | None, Field(description="Stream lines of JSON; default: true.")] = None
    insecure: Annotated[
        Any,
        Unsupported("set HF_ENDPOINT of the gateway to use another registry", (None, False)),
    ] = None


class DeleteRequest(StoredTable):
    """Request of ``/api/delete``."""
