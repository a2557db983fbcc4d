"""Prompts that differ only in the end of the last message: the shared prefix is encoded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from types import MappingProxyType
from typing import Any, NamedTuple

from gatewayd.errors import ContextLengthExceeded, InvalidRequest
from gatewayd.text.special_tokens import SpecialTokenEscaper, any_text
from gatewayd.text.text_model import TextModel

Messages = Sequence[Mapping[str, Any]]


class PromptVariants(NamedTuple):
    """A rendered conversation with its endings.

    Attributes:
        size: total length in characters.
        encode: returns the token ids of each prompt; slow for long text.
    """

    size: int
    encode: Callable[[], list[list[int]]]


def render_variants(
    text: TextModel,
    messages: Messages,
    endings: Sequence[str],
    *,
    limit: int,
    param: str,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> PromptVariants:
    """Render a conversation with several endings; spelled special tokens are ordinary text.

    Args:
        text: of the model.
        messages: each with ``role`` and a ``content`` string. The ending is appended to a user's
            last message after an empty line; after any other it is a new user message.
        endings: of the user's last message, with a common prefix.
        limit: context length in tokens, to refuse far longer prompts without encoding them.
        param: the request's field, for errors.
        arguments: additional variables of the template.

    Raises:
        InvalidRequest: the model has no chat template, or the template rejects the messages.
        ContextLengthExceeded: a prompt is certainly longer than the context.
    """
    template, tokenizer = text.template, text.tokenizer
    if template is None:
        raise InvalidRequest("this model has no chat template, which is required", param=param)
    # Random, so that it occurs in no message; it shows where the template puts the last one.
    mark = token_hex(16)
    given: Any = (_with_mark(messages, mark), endings)
    escaper = None
    special = tokenizer.special_pattern
    try:
        if special is not None and any_text(given, tokenizer.spells_special):
            # Messages and endings together: the escaper's mark must be unused in both.
            escaper = SpecialTokenEscaper(special, given)
            given = escaper.escape(given)
        rendered = template.render(given[0], arguments=arguments)
    except RecursionError:
        raise InvalidRequest(f"{param} is nested too deeply", param=param) from None
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=param) from error
    if escaper is not None:
        rendered = tokenizer.rename_special_tokens(rendered)
    head, *rest = rendered.split(mark)
    # Templates may also repeat or drop the last message.
    if len(rest) != 1:
        raise InvalidRequest(
            "the model's chat template does not render the last message unchanged", param=param
        )
    tails = [ending + rest[0] for ending in given[1]]
    at_least = (len(head) + max(map(len, tails))) // tokenizer.longest_token
    if at_least > limit:
        raise ContextLengthExceeded(
            f"the longest prompt has at least {at_least} tokens; the model's context is {limit}: "
            f"shorten {param}",
            param=param,
        )

    def encode(part: str) -> list[int]:
        if escaper is None:
            return tokenizer.encode(part, trusted=True)
        return tokenizer.encode(escaper.unescape(part))

    def encode_all() -> list[list[int]]:
        first = encode(head)
        # Some tokenizers treat the beginning of a text specially, or merge across the boundary.
        if encode(head + tails[0]) != first + encode(tails[0]):
            return [encode(head + tail) for tail in tails]
        return [first + encode(tail) for tail in tails]

    return PromptVariants(len(head) + sum(map(len, tails)), encode_all)


def _with_mark(messages: Messages, mark: str) -> Messages:
    last = messages[-1] if messages else {"role": ""}
    if last["role"] != "user":
        return [*messages, {"role": "user", "content": mark}]
    content = f"{last['content']}\n\n{mark}" if last["content"] else mark
    return [*messages[:-1], {**last, "content": content}]
