"""The request of ``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gatewayd.http.schema.fields import (
    MAX_LOGPROBS,
    MAX_METADATA,
    GenerationTable,
    Ignored,
    MaxTokens,
    Noted,
    RequestTable,
    Unsupported,
    at_most,
)

MAX_MESSAGES = 4096

_NO_TOOLS = "this server does not call tools yet"
_TEXT_ONLY = "answers are text"


class TextPart(RequestTable):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(RequestTable):
    """One turn; `developer` is the same as `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        str | Annotated[list[TextPart], Field(fail_fast=True, min_length=1, max_length=1024)],
        Field(description="A string, or parts of text that are joined."),
    ]
    name: Annotated[str | None, Noted(), Field(max_length=256)] = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)

    def for_template(self) -> dict[str, str]:
        """The message as chat templates know it."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.text}


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


class ChatRequest(GenerationTable):
    """A chat completion."""

    messages: Annotated[
        Messages,
        Field(description="The conversation so far."),
    ]
    max_completion_tokens: Annotated[
        MaxTokens | None,
        Field(description="As `max_tokens`, and over it; default: what is left of the context."),
    ] = None
    logprobs: Annotated[
        bool | None, Field(description="Give the log-probability of each token.")
    ] = None
    top_logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None,
        Field(description="Alternatives for each token; needs `logprobs`."),
    ] = None
    add_generation_prompt: Annotated[
        bool, Field(description="End the prompt with the beginning of an answer.")
    ] = True
    metadata: Annotated[
        Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None,
        Noted(),
        at_most(MAX_METADATA),
    ] = None
    safety_identifier: Annotated[Any, Ignored()] = None
    prompt_cache_key: Annotated[Any, Ignored()] = None
    prompt_cache_options: Annotated[Any, Ignored()] = None
    prompt_cache_retention: Annotated[Any, Ignored()] = None
    prediction: Annotated[Any, Ignored()] = None
    reasoning_effort: Annotated[Any, Ignored()] = None
    verbosity: Annotated[Any, Ignored()] = None
    parallel_tool_calls: Annotated[Any, Ignored()] = None
    moderation: Annotated[Any, Ignored()] = None

    tools: Annotated[Any, Unsupported(_NO_TOOLS, (None, []))] = None
    tool_choice: Annotated[Any, Unsupported(_NO_TOOLS, (None, "none"))] = None
    functions: Annotated[Any, Unsupported(_NO_TOOLS, (None, []))] = None
    function_call: Annotated[Any, Unsupported(_NO_TOOLS, (None, "none"))] = None
    response_format: Annotated[Any, Unsupported(_TEXT_ONLY, (None, {"type": "text"}))] = None
    audio: Annotated[Any, Unsupported(_TEXT_ONLY)] = None
    modalities: Annotated[Any, Unsupported(_TEXT_ONLY, (None, ["text"]))] = None
    store: Annotated[Any, Unsupported("answers are not kept", (None, False))] = None
    web_search_options: Annotated[Any, Unsupported("the server fetches nothing")] = None
    echo: Annotated[Any, Unsupported("echo belongs to /v1/completions", (None, False))] = None
    continue_final_message: Annotated[Any, Unsupported("use /v1/completions", (None, False))] = None
    chat_template: Annotated[
        Any, Unsupported("a request's own chat_template is refused; the model's is used")
    ] = None
    chat_template_kwargs: Annotated[
        Any, Unsupported("the model's template takes no arguments", (None, {}))
    ] = None
    documents: Annotated[Any, Unsupported("put them into a message", (None, []))] = None
