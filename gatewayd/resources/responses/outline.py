"""Properties of responses for model routers."""

from __future__ import annotations

from gatewayd.http.openai.sampling import priority_of
from gatewayd.http.schema.responses import LOGPROBS, InputItem, ResponseRequest
from gatewayd.tenants.principal import Principal
from gatewayd_hooks.targets.model_routing import MOST_TEXT, RoutedRequest


def outline_of_response(
    request: ResponseRequest, request_id: str, principal: Principal
) -> RoutedRequest:
    """Describe a response by its own input; the stored conversation before it is not read."""
    given = request.input or ""
    texts = [given] if isinstance(given, str) else [_text_of(item) for item in given]
    form = None if request.text is None else request.text.format
    return RoutedRequest(
        request_id=request_id,
        text=texts[-1][-MOST_TEXT:] if texts else "",
        num_chars=sum(map(len, texts)) + len(request.instructions or ""),
        num_messages=len(texts),
        num_tools=len(request.tools or ()),
        max_tokens=request.max_output_tokens,
        priority=priority_of(request),
        tenant=principal.tenant,
        key_id=principal.key_id or "",
        conversation=request.prompt_cache_key or "",
        needs_json=form is not None and form.type != "text",
        needs_logprobs=LOGPROBS in (request.include or ()) or bool(request.top_logprobs),
    )


def _text_of(item: InputItem) -> str:
    content = item.content if item.output is None else item.output
    if isinstance(content, str):
        return content
    return "".join([part.text or "" for part in content or ()])
