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
from gatewayd.http.openai.chat_prompt import check_counted, counted_prompt, most_counted
from gatewayd.http.openai.generate import receive_request
from gatewayd.http.openai.sampling import check_ids
from gatewayd.http.openai.wire import token_text
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.tokenize import DetokenizeRequest, TokenizeRequest
from gatewayd.http.services import Services
from gatewayd.text.text_model import TextModel
from gatewayd.text.tokenizer import Tokenizer

_NO_LIMIT = 2**63
"""Texts longer than the context can be counted, which is a common use of tokenization."""


class Tokenize:
    """Route that tokenizes text or messages."""

    label = "/tokenize"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request, ignored = await receive_request(self._services, TokenizeRequest, scope, receive)
        services = self._services.serving(request.model)
        model = await services.loaded_model()
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequest("send either prompt or messages", param="prompt")
        if request.messages is not None:
            prompt = await counted_prompt(services, _chat_of(request))
            ids, ignored = prompt.token_ids, [*ignored, *prompt.ignored]
        else:
            ids = await _encoded(services.text, request, model.max_model_len)
        tokenizer = services.text.tokenizer
        shown = tokenizer if request.return_token_strs else None
        answer = await tokenizer.run_by_size(
            len(ids), lambda: _answer(ids, model.max_model_len, shown)
        )
        await send_body(send, answer, headers=[JSON_HEADER, *ignored_header(ignored)])


async def _encoded(text: TextModel, request: TokenizeRequest, max_model_len: int) -> list[int]:
    prompt = request.prompt or ""
    check_counted(len(prompt), most_counted(max_model_len), "prompt")
    return await text.encode_prompt(prompt, limit=_NO_LIMIT, add_special=request.add_special_tokens)


def _chat_of(request: TokenizeRequest) -> ChatRequest:
    """Build the chat request to render; its fields were validated by the request's own schema."""
    fields = {name: getattr(request, name) for name in ChatRequest.known & TokenizeRequest.known}
    return ChatRequest.model_construct(**fields)


def _answer(ids: list[int], max_model_len: int, tokenizer: Tokenizer | None) -> bytes:
    """Encode the response, with the text of each token if a tokenizer is given."""
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


class Detokenize:
    """Route that detokenizes token ids."""

    label = "/detokenize"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request, ignored = await receive_request(self._services, DetokenizeRequest, scope, receive)
        services = self._services.serving(request.model)
        model, ids = await services.loaded_model(), request.tokens
        if len(ids) > model.max_model_len:
            raise InvalidRequest(
                f"tokens has {len(ids)} ids; the maximum is the model's context, "
                f"{model.max_model_len}: send them in parts",
                param="tokens",
            )
        check_ids(ids, model.vocab_size, "tokens")
        tokenizer = services.text.tokenizer
        text = await tokenizer.run_by_size(len(ids), lambda: tokenizer.decode(ids))
        await send_json(send, {"prompt": text}, headers=ignored_header(ignored))
