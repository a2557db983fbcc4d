"""Routes of the admin API for requests, admission, models and SLO targets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.routing import Route

from gatewayd.admin.audit_log import AuditRecord
from gatewayd.admin.control import Control
from gatewayd.admin.endpoint import AdminEndpoint, body_if_any, body_of
from gatewayd.admin.peer import peer_in
from gatewayd.config.slo import ClassTargets, SloTable
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.job import EngineJob
from gatewayd.engines.request_handle import JobHandle
from gatewayd.errors import InvalidRequest, ModelNotFound, NotFound, RequestCancelled
from gatewayd.http.asgi import Receive, Scope
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.wire.operations import (
    BumpBody,
    PauseBody,
    RequestAnswer,
    SloBody,
    StateAnswer,
    UnloadBody,
)
from gatewayd_hooks.scheduling import Priority

_log = logging.getLogger(__name__)
_MOST_PAUSE = 7 * 24 * 3600.0
_MOST_UNLOAD = 3600.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Operations:
    """Handlers of operator actions.

    Args:
        live: running requests.
        fleet: the engines.
        control: changes the configuration.
        model: name of the served model.
        drain: drains and stops the daemon; called with the reason.
        record: audits actions.
    """

    _live: LiveRequests[Generation]
    _fleet: EngineFleet
    _control: Control
    _model: str
    _drain: Callable[[str], None]
    _record: AuditRecord

    # One request

    async def cancel(self, scope: Scope, receive: Receive) -> object:
        """Cancel a request with an error."""
        found = self._find(scope)
        found.fail(RequestCancelled("an operator cancelled this request"))
        return await self._finish(scope, found, "cancel", "cancelled")

    async def hold(self, scope: Scope, receive: Receive) -> object:
        """Hold a request, so that it makes no progress."""
        found = self._find(scope)
        # A drain has released all held requests; one held later would delay it to its timeout.
        if self._fleet.is_draining:
            raise InvalidRequest("the daemon finishes what it has and stops; cancel it instead")
        for job in _jobs(found):
            self._fleet.operating.hold(job)
        return await self._finish(scope, found, "hold", "held")

    async def release(self, scope: Scope, receive: Receive) -> object:
        """Release a held request."""
        found = self._find(scope)
        for job in _jobs(found):
            self._fleet.operating.release(job)
        return await self._finish(scope, found, "release", "released")

    async def bump(self, scope: Scope, receive: Receive) -> object:
        """Change the class of a request, or move it to the front of its class."""
        # The body first: the request may end while it is received.
        name = (await body_if_any(scope, receive, BumpBody)).priority
        found = self._find(scope)
        for job in _jobs(found):
            self._fleet.operating.bump(job, None if name is None else Priority[name.upper()])
        return await self._finish(scope, found, "bump", "bumped", priority=name)

    def _find(self, scope: Scope) -> Generation:
        asked = scope["path_params"]["id"]
        found = self._live.find(asked)
        # A request that has failed is live until its response is closed.
        if found is None or found.is_done or found.error is not None:
            raise NotFound(
                f"no request {asked[:128]!r} is running or waiting; ids are those of "
                "the header x-request-id, and finished requests cannot be changed"
            )
        return found

    async def _finish(
        self, scope: Scope, found: Generation, verb: str, done: str, **detail: str | None
    ) -> RequestAnswer:
        own, told = found.work.request_id, found.answered_id
        detail["tenant"] = found.work.principal.tenant
        if told != own:
            detail["x_request_id"] = told  # other clients may have sent the same id
        await self._record(scope, f"request.{verb}", own, **detail)
        _log.warning("request %s %s by %s", found.work.request_id, done, peer_in(scope))
        return RequestAnswer(found.answered_id, done)

    # Admission

    async def pause(self, scope: Scope, receive: Receive) -> object:
        """Pause admission of new requests."""
        seconds = (await body_if_any(scope, receive, PauseBody)).seconds
        if seconds is not None and not 0 < seconds <= _MOST_PAUSE:
            raise InvalidRequest(
                f"seconds is {seconds:g}; it must be above 0 and at most {_MOST_PAUSE:g}, or null "
                "to pause until resumed",
                param="seconds",
            )
        self._fleet.pause.start(seconds)
        await self._record(scope, "admission.pause", "admission", seconds=seconds)
        how = "until resumed" if seconds is None else f"for {seconds:g} s"
        _log.warning("admission paused %s by %s", how, peer_in(scope))
        return self._state()

    async def resume(self, scope: Scope, receive: Receive) -> object:
        """Resume admission."""
        self._fleet.pause.end()
        await self._record(scope, "admission.resume", "admission")
        _log.warning("admission resumed by %s", peer_in(scope))
        return self._state()

    async def drain(self, scope: Scope, receive: Receive) -> object:
        """Drain and stop; recorded before it starts, since it closes the store."""
        try:
            await self._record(scope, "daemon.drain", "daemon")
        finally:
            # Even if the record cannot be written: a full disk stops no operator (ADR 0023).
            self._drain(f"drain by {peer_in(scope)}")
        return StateAnswer("draining", self._replicas())

    # Models

    async def unload(self, scope: Scope, receive: Receive) -> object:
        """Unload the model by stopping the engines."""
        seconds = (await body_if_any(scope, receive, UnloadBody)).seconds
        if not 0 <= seconds <= _MOST_UNLOAD:
            raise InvalidRequest(
                f"seconds is {seconds:g}; it must be from 0 to {_MOST_UNLOAD:g}", param="seconds"
            )
        self._check_model(scope)
        _log.warning("model %s unloaded by %s", self._model, peer_in(scope))
        async with self._record.around_action(scope, "model.unload", self._model, seconds=seconds):
            await self._fleet.unload(seconds)
        return self._state()

    async def load(self, scope: Scope, receive: Receive) -> object:
        """Load the model by starting the engines; answers before they are ready."""
        self._check_model(scope)
        self._fleet.load()
        await self._record(scope, "model.load", self._model)
        _log.warning("model %s loaded by %s", self._model, peer_in(scope))
        return self._state()

    def _check_model(self, scope: Scope) -> None:
        name = scope["path_params"]["name"]
        if name != self._model:
            raise ModelNotFound(f"there is no model {name[:128]!r}; there is {self._model!r}")

    def _state(self) -> StateAnswer:
        return StateAnswer(self._fleet.condition, self._replicas())

    def _replicas(self) -> dict[str, str]:
        return {str(one.index): f"{one.state.value}: {one.detail}" for one in self._fleet.status()}

    # SLO targets

    async def slo(self, scope: Scope, receive: Receive) -> object:
        """Change the SLO targets of classes."""
        changes = await body_of(scope, receive, SloBody)
        if not any(changes.values()):
            raise InvalidRequest(
                f"the body changes nothing; it may set {', '.join(ClassTargets.model_fields)} of "
                f"{', '.join(SloTable.model_fields)}"
            )
        self._control.set_slo(changes, str(peer_in(scope)))
        await self._record(scope, "slo.set", ", ".join(changes), **changes)
        return self._control.config.slo.model_dump()

    async def slo_now(self, scope: Scope, receive: Receive) -> object:
        """Return the SLO targets."""
        return self._control.config.slo.model_dump()


def _jobs(generation: Generation) -> Iterable[EngineJob]:
    """Unfinished jobs of a request's prompts."""
    handles = generation.handles
    jobs = [handle.job for handle in handles if isinstance(handle, JobHandle)]
    return [job for job in jobs if not job.is_over]


def operation_routes(operations: Operations) -> list[Route]:
    """All routes of operator actions."""
    one, model = "/admin/requests/{id:path}", "/admin/models/{name:path}"
    routes = [
        (f"{one}/cancel", "POST", operations.cancel),
        (f"{one}/hold", "POST", operations.hold),
        (f"{one}/release", "POST", operations.release),
        (f"{one}/bump", "POST", operations.bump),
        ("/admin/pause", "POST", operations.pause),
        ("/admin/resume", "POST", operations.resume),
        ("/admin/drain", "POST", operations.drain),
        (f"{model}/unload", "POST", operations.unload),
        (f"{model}/load", "POST", operations.load),
        ("/admin/slo", "PATCH", operations.slo),
        ("/admin/slo", "GET", operations.slo_now),
    ]
    return [
        Route(path, AdminEndpoint(handler), methods=[method]) for path, method, handler in routes
    ]
