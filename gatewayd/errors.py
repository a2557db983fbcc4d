"""Errors of the gateway, and their HTTP responses.

GatewayError
├── InvalidRequest          400  invalid_value        may be raised with a more specific code
│   ├── ContextLengthExceeded  400  context_length_exceeded
│   └── UnsupportedByModel     400  invalid_value    another model may be able to do it
├── Unauthorized            401  invalid_api_key
├── HostNotAllowed          403  host_not_allowed
├── PermissionDenied        403  permission_denied    the API key lacks the right
├── NotFound                404  not_found
│   └── ModelNotFound       404  model_not_found
├── MethodNotAllowed        405  method_not_allowed
├── RequestTimeout          408  request_timeout
├── Conflict                409  conflict             the state of the object forbids it now
├── PayloadTooLarge         413  payload_too_large
├── UnsupportedMediaType    415  unsupported_media_type
├── RateLimited             429  rate_limit_exceeded  a limit of the tenant's
├── TooManyWrongKeys        429  too_many_wrong_keys  from one address; valid keys pass
├── InsufficientQuota       429  insufficient_quota   the remaining budget is too small
├── HeadersTooLarge         431  headers_too_large
├── TooManyConnections      503  too_many_connections
├── QueueFull               503  overloaded
│   └── NotAdmitted             503  not_admitted      refused by the admission strategy
│       └── TenantNotAdmitted      429  tenant_not_admitted  because of its tenant's load
├── EngineUnavailable       503  engine_unavailable
│   ├── ServerStopping      503  server_shutdown      also ends interrupted streams
│   ├── AdmissionPaused     503  paused               an operator has paused admission
│   └── ModelUnloaded       503  model_unloaded       an operator has stopped the engines
├── RequestCancelled        503  cancelled            by an operator; do not retry
├── StoreUnavailable        503  store_unavailable    its disk is full, read-only or damaged
├── StoreFull               507  store_full           the storage quota is used up
├── StrategyUnavailable     503  strategy_unavailable  a requested logits processor fails
├── EngineLost              500  engine_restarted     ends a stream that had begun
├── NumericalError          500  numerical_error      the model's logits were NaN or infinite
├── QueueTimeout            504  queue_timeout        waited longer than its own timeout
├── UpstreamError           502  upstream_error       an upstream failed, or its answer is invalid
│   ├── UpstreamRefused         502  upstream_refused    it refuses the gateway's key, or the model
│   ├── UpstreamTimeout         504  upstream_timeout    it was silent for too long
│   └── UpstreamUnavailable     503  upstream_unavailable  no endpoint of it serves
├── UpstreamBusy            503  upstream_busy        a limit of an upstream, or on its use
└── InternalError           500  internal_error
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class GatewayError(Exception):
    """Error response in OpenAI's format.

    Attributes:
        status: HTTP status.
        type: OpenAI's error type.
        code: specific, stable error code for programs.
        param: the request's field at fault, or None.
        retry_after: seconds after which to retry, or None.
        offers: variants that would be accepted: changed fields of the request, or a later time.
        failure: class of failures after which another target of a route may answer, of
            ``gatewayd_hooks.targets.model_routing.FAILURES``; empty for all others.
    """

    failure: str = ""
    status: int = 500
    type: str = "server_error"
    code: str = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.offers: Sequence[Mapping[str, Any]] = ()
        if code is not None:
            self.code = code

    def body(self) -> dict[str, Any]:
        """OpenAI's error object, with the offers."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        if self.offers:
            error["offers"] = [dict(offer) for offer in self.offers]
        return {"error": error}


class InvalidRequest(GatewayError):
    """A field is missing, of the wrong type or out of its bounds."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or the prompt and the requested output, exceed the context length."""

    code = "context_length_exceeded"
    failure = "context"


class UnsupportedByModel(InvalidRequest):
    """The model cannot do what a field asks for, such as an upstream's with token ids."""

    failure = "unsupported"


class Unauthorized(GatewayError):
    """The API key is missing or invalid."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class HostNotAllowed(GatewayError):
    """The Host header names another machine than this one."""

    status = 403
    type = "permission_error"
    code = "host_not_allowed"


class PermissionDenied(GatewayError):
    """The API key is valid but lacks the right."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class NotFound(GatewayError):
    """There is no such route or object."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """There is no such model."""

    code = "model_not_found"


class MethodNotAllowed(GatewayError):
    """The route does not support the method."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class RequestTimeout(GatewayError):
    """The request did not arrive in time."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class Conflict(GatewayError):
    """The state of the object forbids the operation now."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class PayloadTooLarge(GatewayError):
    """The body exceeds the limit."""

    status = 413
    type = "invalid_request_error"
    code = "payload_too_large"


class UnsupportedMediaType(GatewayError):
    """The body is not JSON, or is compressed."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class RateLimited(GatewayError):
    """A rate or concurrency limit of the tenant is reached.

    Attributes:
        headers: rate-limit headers of the response.
        offers: a shorter length that would be accepted now, and when the whole would be.
    """

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: float, headers: Mapping[str, str]) -> None:
        super().__init__(message, retry_after=retry_after)
        self.headers = headers


class TooManyWrongKeys(GatewayError):
    """The key is invalid, and so were many from the same address."""

    status = 429
    type = "rate_limit_error"
    code = "too_many_wrong_keys"


class InsufficientQuota(GatewayError):
    """The tenant's remaining budget is smaller than the request's maximum cost.

    With ``retry_after`` running requests hold the rest of it; without, a retry cannot succeed.
    """

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"


class HeadersTooLarge(GatewayError):
    """The headers are too many or too long."""

    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class TooManyConnections(GatewayError):
    """The connection limits are reached."""

    status = 503
    code = "too_many_connections"


class QueueFull(GatewayError):
    """The limits of the request queue are reached.

    Attributes:
        by_tokens: whether it is the limit on prompt tokens; else that on requests.
    """

    status = 503
    type = "server_error"
    code = "overloaded"
    failure = "overloaded"

    def __init__(
        self, message: str, *, retry_after: float | None = None, by_tokens: bool = False
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.by_tokens = by_tokens


class NotAdmitted(QueueFull):
    """The admission strategy has refused the request.

    Attributes:
        reason: the strategy's reason, in one word.
        offers: fields and values with which the request would be admitted now.
    """

    code = "not_admitted"

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        retry_after: float,
        offers: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.reason = reason
        self.offers = offers

    def body(self) -> dict[str, Any]:
        """OpenAI's error object with the reason, and with offers even if there are none."""
        body = super().body()
        body["error"] |= {"reason": self.reason, "offers": [dict(offer) for offer in self.offers]}
        return body


class TenantNotAdmitted(NotAdmitted):
    """The admission strategy has refused the request because of its tenant's own load."""

    status = 429
    type = "rate_limit_error"
    code = "tenant_not_admitted"
    failure = ""


class EngineUnavailable(GatewayError):
    """No engine is available."""

    status = 503
    type = "server_error"
    code = "engine_unavailable"
    failure = "unavailable"


class ServerStopping(EngineUnavailable):
    """The daemon is shutting down: it accepts no requests, and cuts those that exceed the drain."""

    code = "server_shutdown"
    failure = ""


class AdmissionPaused(EngineUnavailable):
    """An operator has paused the admission of new requests."""

    type = "paused"
    code = "paused"


class ModelUnloaded(EngineUnavailable):
    """An operator has stopped the engines, until the model is loaded again."""

    code = "model_unloaded"


class RequestCancelled(GatewayError):
    """An operator has cancelled the request."""

    status = 503
    code = "cancelled"


class StoreUnavailable(GatewayError):
    """The store cannot be read or written."""

    status = 503
    code = "store_unavailable"


class StoreFull(GatewayError):
    """The storage quota is used up, or the disk is almost full."""

    status = 507
    code = "store_full"


class StrategyUnavailable(GatewayError):
    """A logits processor that the request asks for has failed, or is disabled."""

    status = 503
    code = "strategy_unavailable"
    failure = "unavailable"


class EngineLost(GatewayError):
    """The engine died while it was streaming the response."""

    code = "engine_restarted"
    failure = "lost"


class QueueTimeout(GatewayError):
    """No engine has started the request within its own timeout."""

    status = 504
    code = "queue_timeout"


class UpstreamError(GatewayError):
    """An upstream failed, or its answer does not follow its API."""

    status = 502
    code = "upstream_error"
    failure = "upstream"


class UpstreamRefused(UpstreamError):
    """An upstream refuses the gateway's credential, or does not know the model."""

    code = "upstream_refused"


class UpstreamTimeout(UpstreamError):
    """An upstream was silent for longer than the time-out of a phase."""

    status = 504
    code = "upstream_timeout"


class UpstreamUnavailable(UpstreamError):
    """Every endpoint of an upstream is ejected, until one answers a probe."""

    status = 503
    code = "upstream_unavailable"


class UpstreamBusy(GatewayError):
    """A limit of an upstream, or the gateway's on its use, is reached."""

    status = 503
    code = "upstream_busy"
    failure = "overloaded"


class NumericalError(GatewayError):
    """The model produced NaN or infinite logits for this request."""

    code = "numerical_error"
    failure = "numerical"


# The same sentence for every bug: an exception's text could quote a request or name internals.
MISTAKE = "internal error of the gateway; see its log"


class InternalError(GatewayError):
    """A bug in the gateway."""


class ClientGone(Exception):
    """The client disconnected before its request was complete, so no response can be sent."""
