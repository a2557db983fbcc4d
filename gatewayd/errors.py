"""What can go wrong, and how it is answered.

GatewayError
├── InvalidRequest          400  invalid_value        who raises it may give a narrower code
│   └── ContextLengthExceeded  400  context_length_exceeded
├── Unauthorized            401  invalid_api_key
├── HostNotAllowed          403  host_not_allowed
├── PermissionDenied        403  permission_denied    the API key is good, and not for this
├── NotFound                404  not_found
│   └── ModelNotFound       404  model_not_found
├── MethodNotAllowed        405  method_not_allowed
├── RequestTimeout          408  request_timeout
├── Conflict                409  conflict             the state of something forbids it now
├── PayloadTooLarge         413  payload_too_large
├── UnsupportedMediaType    415  unsupported_media_type
├── RateLimited             429  rate_limit_exceeded  a limit of the tenant's
├── TooManyWrongKeys        429  too_many_wrong_keys  from one address; right ones pass
├── InsufficientQuota       429  insufficient_quota   what is left of its budget is too little
├── HeadersTooLarge         431  headers_too_large
├── TooManyConnections      503  too_many_connections
├── QueueFull               503  overloaded
│   └── NotAdmitted             503  not_admitted      the admission refuses it, with a reason
│       └── TenantNotAdmitted      429  tenant_not_admitted  because of what its tenant does
├── EngineUnavailable       503  engine_unavailable
│   ├── ServerStopping      503  server_shutdown      also ends a stream that is cut
│   ├── AdmissionPaused     503  paused               an operator takes no new requests now
│   └── ModelUnloaded       503  model_unloaded       an operator has ended the engines
├── RequestCancelled        503  cancelled            by an operator; trying again is not wanted
├── StoreUnavailable        503  store_unavailable    its disk is full, read-only or damaged
├── StoreFull               507  store_full           what it may take is taken
├── StrategyUnavailable     503  strategy_unavailable  a logits processor that was asked for fails
├── EngineLost              500  engine_restarted     ends a stream that had begun
├── NumericalError          500  numerical_error      the model's logits were not numbers
├── QueueTimeout            504  queue_timeout        it waited for longer than it asked for
└── InternalError           500  internal_error
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class GatewayError(Exception):
    """An answer other than 200, as OpenAI's error object.

    Attributes:
        status: of the HTTP answer.
        type: OpenAI's family of the error.
        code: what exactly went wrong; stable, for programs.
        param: the request's field at fault, or None.
        retry_after: seconds after which to try again, or None.
        offers: what would be taken on: fields of the request with other values, or when.
    """

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
        """OpenAI's error object, with what a program can do about it."""
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
    """The prompt, or the prompt and the answer asked for, do not fit the context."""

    code = "context_length_exceeded"


class Unauthorized(GatewayError):
    """No key, or a wrong one."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class HostNotAllowed(GatewayError):
    """The host header names another machine than this one."""

    status = 403
    type = "permission_error"
    code = "host_not_allowed"


class PermissionDenied(GatewayError):
    """The API key is good, and not for this."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class NotFound(GatewayError):
    """No such route."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """No such model."""

    code = "model_not_found"


class MethodNotAllowed(GatewayError):
    """The route exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class RequestTimeout(GatewayError):
    """The request did not arrive in time."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class Conflict(GatewayError):
    """What is asked for cannot be done now, because of the state of something."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class PayloadTooLarge(GatewayError):
    """The body is over the limit."""

    status = 413
    type = "invalid_request_error"
    code = "payload_too_large"


class UnsupportedMediaType(GatewayError):
    """The body is not JSON, or is compressed."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class RateLimited(GatewayError):
    """A limit of the tenant's is reached.

    Attributes:
        headers: what the answer says of the limits.
        offers: an answer short enough for what is left, and when all of it would be taken on.
    """

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: float, headers: Mapping[str, str]) -> None:
        super().__init__(message, retry_after=retry_after)
        self.headers = headers


class TooManyWrongKeys(GatewayError):
    """The key is wrong, and so were many from the same address."""

    status = 429
    type = "rate_limit_error"
    code = "too_many_wrong_keys"


class InsufficientQuota(GatewayError):
    """The tenant's budget has less left than the request may take.

    With ``retry_after`` it is others that run who hold it; without, trying again is in vain.
    """

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"


class HeadersTooLarge(GatewayError):
    """Too many headers, or too long."""

    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class TooManyConnections(GatewayError):
    """The caps on connections are reached."""

    status = 503
    code = "too_many_connections"


class QueueFull(GatewayError):
    """The caps on waiting work are reached.

    Attributes:
        by_tokens: whether it is the cap on prompt tokens; else that on requests.
    """

    status = 503
    type = "server_error"
    code = "overloaded"

    def __init__(
        self, message: str, *, retry_after: float | None = None, by_tokens: bool = False
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.by_tokens = by_tokens


class NotAdmitted(QueueFull):
    """The admission strategy has refused the request.

    Attributes:
        reason: the strategy's own word for why.
        offers: fields and values with which it would be taken on now.
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
        """The same with the reason, and offers even if there are none."""
        body = super().body()
        body["error"] |= {"reason": self.reason, "offers": [dict(offer) for offer in self.offers]}
        return body


class TenantNotAdmitted(NotAdmitted):
    """The same, because of what the tenant itself does."""

    status = 429
    type = "rate_limit_error"
    code = "tenant_not_admitted"


class EngineUnavailable(GatewayError):
    """No engine serves."""

    status = 503
    type = "server_error"
    code = "engine_unavailable"


class ServerStopping(EngineUnavailable):
    """The daemon takes no more, or has cut what did not end in time."""

    code = "server_shutdown"


class AdmissionPaused(EngineUnavailable):
    """An operator has paused the admission of new requests."""

    type = "paused"
    code = "paused"


class ModelUnloaded(EngineUnavailable):
    """An operator has ended the engines, until the model is loaded again."""

    code = "model_unloaded"


class RequestCancelled(GatewayError):
    """An operator has ended the request."""

    status = 503
    code = "cancelled"


class StoreUnavailable(GatewayError):
    """What is kept cannot be read or written."""

    status = 503
    code = "store_unavailable"


class StoreFull(GatewayError):
    """The store takes nothing new: it has what it may have, or its disk has little left."""

    status = 507
    code = "store_full"


class StrategyUnavailable(GatewayError):
    """A logits processor that the request asks for has failed, or is out of service."""

    status = 503
    code = "strategy_unavailable"


class EngineLost(GatewayError):
    """The engine died under a request whose answer had begun."""

    code = "engine_restarted"


class QueueTimeout(GatewayError):
    """No engine has begun with the request within the time that it gives itself."""

    status = 504
    code = "queue_timeout"


class NumericalError(GatewayError):
    """The model produced logits that are not numbers for this request."""

    code = "numerical_error"


MISTAKE = "internal error of the gateway; see its log"


class InternalError(GatewayError):
    """A fault of the gateway's own."""


class ClientGone(Exception):
    """The client left before its request was complete; there is nobody to answer."""
