"""Properties of chats and text completions for model routers."""

from __future__ import annotations

from gatewayd.http.openai.sampling import priority_of
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.completion import CompletionRequest
from gatewayd.http.schema.generation import GenerationTable
from gatewayd.http.schema.structured import StructuredTable
from gatewayd.tenants.principal import Principal
from gatewayd_hooks.targets.model_routing import MOST_TEXT, RoutedRequest

TOKEN_CHARS = 4
"""Characters that a token id of a prompt counts as."""


def outline_of(request: GenerationTable, request_id: str, principal: Principal) -> RoutedRequest:
    """Describe a chat or a text completion for model routers.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(request, ChatRequest):
        text, num_chars = _of_messages(request)
        num_messages = len(request.messages)
        num_tools = len(request.tools or ()) + len(request.functions or ())
        max_tokens, logprobs = request.max_completion_tokens, bool(request.logprobs)
    elif isinstance(request, CompletionRequest):
        text, num_chars = _of_prompt(request.prompt)
        num_messages, num_tools, max_tokens = 1, 0, None
        logprobs = request.logprobs is not None
    else:
        raise TypeError(f"{type(request).__name__} is neither a chat nor a completion")
    return RoutedRequest(
        request_id=request_id,
        text=text,
        num_chars=num_chars,
        num_messages=num_messages,
        num_tools=num_tools,
        max_tokens=request.max_tokens if max_tokens is None else max_tokens,
        priority=priority_of(request),
        tenant=principal.tenant,
        key_id=principal.key_id or "",
        conversation=request.prompt_cache_key or "",
        needs_json=_is_constrained(request),
        needs_logprobs=logprobs,
    )


def _of_messages(request: ChatRequest) -> tuple[str, int]:
    """Return the end of the user's last message, and the characters of all messages."""
    texts = [message.text for message in request.messages]
    asked = [text for text, one in zip(texts, request.messages, strict=True) if one.role == "user"]
    return (asked or texts)[-1][-MOST_TEXT:], sum(map(len, texts))


def _of_prompt(prompt: str | list[str] | list[int] | list[list[int]]) -> tuple[str, int]:
    """Return the end of the last prompt, and the characters of all."""
    prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    last = prompts[-1]
    text = last[-MOST_TEXT:] if isinstance(last, str) else ""
    return text, sum([len(one) * (1 if isinstance(one, str) else TOKEN_CHARS) for one in prompts])


def _is_constrained(request: StructuredTable) -> bool:
    form = request.response_format
    if form is not None and form.type != "text":
        return True
    return any(getattr(request, name) is not None for name in _CONSTRAINTS)


_CONSTRAINTS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "regex",
    "ebnf",
    "grammar",
)
