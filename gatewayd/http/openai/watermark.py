"""``POST /v1/watermark/detect``: detection of the tenant's watermark in a text."""

from __future__ import annotations

from dataclasses import asdict

from gatewayd.errors import InvalidRequest, NotFound, PermissionDenied
from gatewayd.http.asgi import Receive, Scope, Send, ignored_header, send_json
from gatewayd.http.openai.generate import receive_request
from gatewayd.http.openai.sampling import check_ids
from gatewayd.http.schema.watermark import MAX_MARK_TOKENS, DetectRequest
from gatewayd.http.services import Services
from gatewayd.store.tables import DEFAULT_TENANT
from gatewayd.tenants.principal import Principal, principal_of

_MAX_CHARACTERS = 4 * MAX_MARK_TOKENS


class Detect:
    """Route that detects a watermark in text or token ids."""

    label = "/v1/watermark/detect"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request, ignored = await receive_request(self._services, DetectRequest, scope, receive)
        principal = principal_of(scope)
        services = self._services.serving(request.model)
        tenant = _target_tenant(request, principal)
        detector = services.local.detector()
        if detector is None:
            raise NotFound(
                "no watermark is configured: no strategy of [logits_processor] sets one",
                code="watermark_not_configured",
            )
        ids = await _ids(services, request)
        found = await services.text.tokenizer.run_by_size(
            len(ids), lambda: detector.detect(ids, tenant)
        )
        answer = {"object": "watermark.detection", "num_tokens": len(ids), **asdict(found)}
        await send_json(send, answer, headers=ignored_header(ignored))


async def _ids(services: Services, request: DetectRequest) -> list[int]:
    text, ids = request.text, request.tokens
    if (text is None) == (ids is None):
        raise InvalidRequest("send either text or tokens", param="text")
    param = "tokens" if text is None else "text"
    if text is not None:
        if len(text) > _MAX_CHARACTERS:
            raise InvalidRequest(
                f"text has {len(text)} characters; the maximum is {_MAX_CHARACTERS}: send it "
                "in parts",
                param=param,
            )
        ids = await services.text.tokenizer.encode_async(text)
    ids = ids or []
    if len(ids) > MAX_MARK_TOKENS:
        raise InvalidRequest(
            f"{param} has {len(ids)} tokens; the maximum is {MAX_MARK_TOKENS}: send it in parts",
            param=param,
        )
    model = await services.loaded_model()
    check_ids(ids, model.vocab_size, param)
    return ids


def _target_tenant(request: DetectRequest, principal: Principal) -> str:
    """Return the tenant whose watermark to detect: the caller's own, as results reveal the mark.

    Raises:
        PermissionDenied: it is another tenant, and the caller is not the operator.
    """
    tenant = principal.tenant if request.tenant is None else request.tenant
    is_operator = principal.is_free and principal.tenant == DEFAULT_TENANT
    if tenant != principal.tenant and not is_operator:
        raise PermissionDenied(
            "this API key may detect the watermark of its own tenant only; omit tenant",
            param="tenant",
        )
    return tenant
