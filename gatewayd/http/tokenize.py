"""``POST /tokenize`` and ``POST /detokenize``, also under ``/v1``."""

from __future__ import annotations

from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import (
    JSON_HEADER,
    Receive,
    Scope,
    Send,
    encode_entries,
    ignored_header,
    send_body,
    send_json,
)
from gatewayd.http.conversation import for_template
from gatewayd.http.generate import receive_request
from gatewayd.http.sampling import check_ids
from gatewayd.http.schema.tokenize import DetokenizeRequest, TokenizeRequest
from gatewayd.http.services import Services
from gatewayd.http.wire import token_text
from gatewayd.text.tokenizer import Tokenizer

_NO_LIMIT = 2**63
"""Texts longer than the context can be counted: that is what one tokenizes for."""

_MAX_CHARACTERS = 1 << 20
"""Two seconds of one of the threads that encode everybody's prompts."""


class Tokenize:
    """Text to token ids."""

    label = "/tokenize"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        services = self._services
        request, ignored = await receive_request(services, TokenizeRequest, scope, receive)
        services.check_model(request.model)
        model = await services.loaded_model()
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequest("send either prompt or messages", param="prompt")
        _check_length(request)
        if request.messages is not None:
            ids = await services.text.encode_chat(
                for_template(request.messages, services.parsers),
                limit=_NO_LIMIT,
                add_generation_prompt=request.add_generation_prompt,
            )
        else:
            ids = await services.text.encode_prompt(
                request.prompt or "", limit=_NO_LIMIT, add_special=request.add_special_tokens
            )
        tokenizer = services.text.tokenizer
        shown = tokenizer if request.return_token_strs else None
        answer = await tokenizer.apart(len(ids), lambda: _answer(ids, model.max_model_len, shown))
        await send_body(send, answer, headers=[JSON_HEADER, *ignored_header(ignored)])


def _answer(ids: list[int], max_model_len: int, tokenizer: Tokenizer | None) -> bytes:
    """The object, with the text of each token if there is a tokenizer."""
    texts = b""
    if tokenizer is not None:
        shown = [token_text(tokenizer.piece(token)) for token in ids]
        texts = b',"token_strs":[%b]' % encode_entries(shown)
    return b'{"count":%d,"max_model_len":%d,"tokens":[%b]%b}' % (
        len(ids),
        max_model_len,
        encode_entries(ids),
        texts,
    )


def _check_length(request: TokenizeRequest) -> None:
    length = len(request.prompt or "")
    length += sum(len(message.text) for message in request.messages or ())
    if length > _MAX_CHARACTERS:
        raise InvalidRequest(
            f"the text has {length} characters; the maximum is {_MAX_CHARACTERS}: send it in parts",
            param="messages" if request.messages else "prompt",
        )


class Detokenize:
    """Token ids to text."""

    label = "/detokenize"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        services = self._services
        request, ignored = await receive_request(services, DetokenizeRequest, scope, receive)
        services.check_model(request.model)
        model, ids = await services.loaded_model(), request.tokens
        if len(ids) > model.max_model_len:
            raise InvalidRequest(
                f"tokens has {len(ids)} ids; the maximum is the model's context, "
                f"{model.max_model_len}: send them in parts",
                param="tokens",
            )
        check_ids(ids, model.vocab_size, "tokens")
        tokenizer = services.text.tokenizer
        text = await tokenizer.apart(len(ids), lambda: tokenizer.decode(ids))
        await send_json(send, {"prompt": text}, headers=ignored_header(ignored))
