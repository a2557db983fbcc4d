"""Conversations that differ in how their last message ends: what they share is encoded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from types import MappingProxyType
from typing import Any, NamedTuple

from gatewayd.errors import ContextLengthExceeded, InvalidRequest
from gatewayd.text.special_tokens import Hiding, any_text
from gatewayd.text.text_model import TextModel

Messages = Sequence[Mapping[str, Any]]


class Endings(NamedTuple):
    """A rendered conversation with its endings.

    Attributes:
        size: of it, in characters.
        encode: makes the token ids of each prompt; of much text it takes long.
    """

    size: int
    encode: Callable[[], list[list[int]]]


def render_endings(
    text: TextModel,
    messages: Messages,
    endings: Sequence[str],
    *,
    limit: int,
    param: str,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> Endings:
    """Render a conversation once for each ending; special tokens that it spells stay text.

    Args:
        text: of the model.
        messages: each with ``role`` and a ``content`` string. A user's last one goes on, behind an
            empty line; behind any other the ending is a message of its own.
        endings: of the user's last message; they begin alike.
        limit: tokens of the context, to refuse hopeless lengths without encoding them.
        param: the request's field, for errors.
        arguments: of the template.

    Raises:
        InvalidRequest: the model has no chat template, or the template refuses them.
        ContextLengthExceeded: they are certainly longer than the context.
    """
    template, tokenizer = text.template, text.tokenizer
    if template is None:
        raise InvalidRequest("this model has no chat template, so it cannot be asked", param=param)
    mark = token_hex(16)
    given: Any = (_marked(messages, mark), endings)
    hiding = None
    special = tokenizer.special_pattern
    try:
        if special is not None and any_text(given, tokenizer.spells_special):
            hiding = Hiding(special, given)
            given = hiding.hide(given)
        rendered = template.render(given[0], arguments=arguments)
    except RecursionError:
        raise InvalidRequest(f"{param} is nested too deeply", param=param) from None
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=param) from error
    if hiding is not None:
        rendered = tokenizer.disguise(rendered)
    head, *rest = rendered.split(mark)
    if len(rest) != 1:
        raise InvalidRequest(
            "the model's chat template does not show the last message as it is", param=param
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
        if hiding is None:
            return tokenizer.encode(part, trusted=True)
        return tokenizer.encode(hiding.show(part))

    def encode_all() -> list[list[int]]:
        first = encode(head)
        # Some vocabularies see where a text begins, or merge over any border.
        if encode(head + tails[0]) != first + encode(tails[0]):
            return [encode(head + tail) for tail in tails]
        return [first + encode(tail) for tail in tails]

    return Endings(len(head) + sum(map(len, tails)), encode_all)


def _marked(messages: Messages, mark: str) -> Messages:
    last = messages[-1] if messages else {"role": ""}
    if last["role"] != "user":
        return [*messages, {"role": "user", "content": mark}]
    content = f"{last['content']}\n\n{mark}" if last["content"] else mark
    return [*messages[:-1], {**last, "content": content}]
