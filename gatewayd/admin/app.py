"""Routes of the admin API. They accept no commands or paths, only names of installed plugins."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from gatewayd.admin.audit_log import AuditRecord
from gatewayd.admin.control import LIMITS, ChangeRefused, Control
from gatewayd.admin.endpoint import AdminEndpoint, body_of
from gatewayd.admin.peer import peer_in
from gatewayd.admin.pinning import Pinning
from gatewayd.admin.tenants import tenant_routes
from gatewayd.errors import (
    ClientGone,
    GatewayError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
)
from gatewayd.http.asgi import (
    App,
    Receive,
    Scope,
    Send,
    send_error,
)
from gatewayd.http.query import query_of
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.tenants.tenancy import Tenancy
from gatewayd.tracing.archive import Archive
from gatewayd.tracing.explanation import explanation, row
from gatewayd.tracing.recent import REFUSED, RecentLatencyRecords
from gatewayd.wire.requests import LimitsBody, PinBody, SwapAnswer, SwapBody

_log = logging.getLogger(__name__)
_PROMPT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Admin:
    """Handlers of strategies, limits, pins and request timelines.

    Args:
        control: changes the configuration.
        pinning: pins prompts.
        recent: timelines of the last requests.
        record: audits actions.
        live: running requests.
        archive: stored timelines of older requests; None without an archive.
    """

    _control: Control
    _pinning: Pinning
    _recent: RecentLatencyRecords
    _record: AuditRecord
    _live: LiveRequests[Generation]
    _archive: Archive | None

    async def strategies(self, scope: Scope, receive: Receive) -> object:
        """Return chosen strategies, their costs, and the limits."""
        control = self._control
        return {
            "slots": control.kinds(),
            "strategies": [
                {"engine": engine, **msgspec.structs.asdict(row)} for engine, row in control.costs()
            ],
            "limits": control.limits(),
        }

    async def swap(self, scope: Scope, receive: Receive) -> object:
        """Swap the strategy of a kind."""
        body = await body_of(scope, receive, SwapBody)
        kind = scope["path_params"]["kind"]
        if isinstance(body.name, str):
            names, settings = [body.name], {body.name: body.settings} if body.settings else {}
        else:
            names, settings = body.name, body.settings
        if not all(isinstance(values, dict) for values in settings.values()):
            raise InvalidRequest("settings must be a table for each name", param="settings")
        # Settings may contain secrets: record only their names.
        given = {name: sorted(values) for name, values in settings.items()}
        async with self._record.around_action(
            scope, "strategy.swap", kind, names=names, settings=given
        ):
            has_state = await self._control.swap(kind, names, settings, str(peer_in(scope)))
        return SwapAnswer(kind, names, has_state)

    async def limits(self, scope: Scope, receive: Receive) -> object:
        """Change limits."""
        body = await body_of(scope, receive, LimitsBody)
        changes = msgspec.to_builtins(body)
        if not changes:
            raise InvalidRequest(f"the body changes nothing; it may set {', '.join(LIMITS)}")
        self._control.set_limits(changes, str(peer_in(scope)))
        await self._record(scope, "limits.set", ", ".join(changes), **changes)
        return self._control.limits()

    async def pin(self, scope: Scope, receive: Receive) -> object:
        """Pin the cached prefix of a prompt, or unpin it."""
        body = await body_of(scope, receive, PinBody, _PROMPT_BYTES)
        is_all = body.prompt is None and not body.messages
        what = "all" if is_all else "a prompt"
        async with self._record.around_action(scope, "pin.set", what, seconds=body.seconds) as told:
            answer = await self._pinning.pin(body, str(peer_in(scope)))
            told["tokens"] = answer.prompt_tokens
        return answer

    async def requests(self, scope: Scope, receive: Receive) -> object:
        """List the last requests, newest first, or the slowest of those in memory.

        Of all models, or of the one that the query names.
        """
        query = query_of(scope)
        order, limit = query.get("order", "newest"), query.get("limit", "20")
        if order not in ("newest", "slowest"):
            raise InvalidRequest("order must be newest or slowest", param="order")
        if (
            # Truncated: int() refuses thousands of digits with an error of its own.
            not (limit.isascii() and limit.isdigit())
            or not 1 <= int(limit[:9]) <= self._recent.most
        ):
            raise InvalidRequest(f"limit must be from 1 to {self._recent.most}", param="limit")
        # The name of the method is one of the two that were checked.
        found = getattr(self._recent, order)(int(limit), query.get("model"))
        return {"requests": [row(record) for record in found]}

    async def explain(self, scope: Scope, receive: Receive) -> object:
        """Break down the time of a request."""
        asked = scope["path_params"]["id"]
        # Clients may reuse an id: a running request is the latest.
        runs = self._live.find(asked)
        record = self._recent.find(asked) if runs is None else runs.latency_record
        if record is not None:
            return explanation(record)
        if self._archive is not None and (kept := await self._archive.find(asked)) is not None:
            return kept
        raise NotFound(
            f"no request {asked[:128]!r} runs, or has ended among the last {self._recent.most} or "
            "is in the store; ids are those of the header x-request-id, of requests that were sent "
            f"to an engine, and of the last {REFUSED} that were refused because of a limit"
        )


class AdminErrorMiddleware:
    """Error handling around the routes: converts exceptions to responses."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        scope["app"] = self  # starlette then raises its 404 and 405 instead of answering
        try:
            await self._app(scope, receive, send)
        except ClientGone:
            return
        except ChangeRefused as refusal:
            await send_error(send, InvalidRequest(str(refusal)))
        except GatewayError as error:
            await send_error(send, error)
        except HTTPException as error:
            path = scope["path"][:128]
            wrong = MethodNotAllowed if error.status_code == 405 else NotFound
            await send_error(send, wrong(f"there is no {scope['method'][:16]} {path}"))
        except Exception:  # noqa: BLE001 - any error gets a response
            _log.exception("admin request failed")
            await send_error(send, InternalError("internal error of the daemon; see its log"))


def build_admin(
    control: Control,
    pinning: Pinning,
    recent: RecentLatencyRecords,
    tenancy: Tenancy,
    more: Sequence[Route] = (),
    live: LiveRequests[Generation] | None = None,
    archive: Archive | None = None,
) -> App:
    """Build the app, with further routes."""
    lives = LiveRequests[Generation]() if live is None else live
    admin = Admin(control, pinning, recent, AuditRecord(tenancy), lives, archive)
    routes = Router(
        [
            Route("/admin/strategies", AdminEndpoint(admin.strategies), methods=["GET"]),
            Route("/admin/strategies/{kind}", AdminEndpoint(admin.swap), methods=["PUT"]),
            Route("/admin/limits", AdminEndpoint(admin.limits), methods=["PATCH"]),
            Route("/admin/pins", AdminEndpoint(admin.pin), methods=["PUT"]),
            Route("/admin/requests", AdminEndpoint(admin.requests), methods=["GET"]),
            # A path, since clients choose ids. For a POST to .../cancel this is only a partial
            # match, and starlette goes on to the full one.
            Route("/admin/requests/{id:path}", AdminEndpoint(admin.explain), methods=["GET"]),
            *tenant_routes(tenancy),
            *more,
        ],
        redirect_slashes=False,
    )
    return AdminErrorMiddleware(routes)
