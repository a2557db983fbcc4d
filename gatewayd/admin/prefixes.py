"""Routes of the admin API that pin and evict cached pages."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from starlette.routing import Route

from gatewayd.admin.audit_log import AuditRecord
from gatewayd.admin.endpoint import AdminEndpoint, body_of
from gatewayd.admin.peer import peer_in
from gatewayd.admin.pinning import MOST_SECONDS
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.operator_actions import EvictionRefused
from gatewayd.engines.pins import PinRefused
from gatewayd.errors import EngineUnavailable, InvalidRequest, NotFound
from gatewayd.http.asgi import Receive, Scope
from gatewayd.http.query import query_of
from gatewayd.store.tables import DEFAULT_TENANT
from gatewayd.wire.operations import EvictAnswer, PagePinAnswer, PagePinBody

_log = logging.getLogger(__name__)


class PrefixRoutes:
    """Handlers of pins and evictions.

    Args:
        fleet: the engines, each with its own prefix cache.
        record: audits actions.
    """

    def __init__(self, fleet: EngineFleet, record: AuditRecord) -> None:
        self._fleet = fleet
        self._record = record

    async def pin(self, scope: Scope, receive: Receive) -> object:
        """Pin a cached page and its ancestors, or unpin it."""
        body = await body_of(scope, receive, PagePinBody)
        if not 0 <= body.seconds <= MOST_SECONDS:
            raise InvalidRequest(
                f"seconds is {body.seconds:g}; it must be from 0, which unpins, to "
                f"{MOST_SECONDS:g}",
                param="seconds",
            )
        engine, page = self._target(scope)
        target, seconds = f"{engine}/{page}", body.seconds
        async with self._record.around_action(scope, "prefix.pin", target, seconds=seconds):
            try:
                tokens = await self._fleet.pins.pin_page(engine, page, seconds)
            except PinRefused as refusal:
                raise InvalidRequest(str(refusal), param="eviction") from refusal
            if not tokens:
                raise _not_cached(engine, page)
        return PagePinAnswer(tokens)

    async def evict_page(self, scope: Scope, receive: Receive) -> object:
        """Evict a cached page and its descendants."""
        engine, page = self._target(scope)
        return await self._evict(scope, f"{engine}/{page}", engine=engine, page=page)

    async def evict(self, scope: Scope, receive: Receive) -> object:
        """Evict all cached pages, or all of a tenant."""
        tenant = query_of(scope).get("tenant")
        if tenant is None:
            return await self._evict(scope, "all")
        if not self._record.has_tenant(tenant):
            raise NotFound(f"there is no tenant {tenant[:64]!r}", param="tenant")
        # Requests without a key have no tenant at the engines, and are shown as the default's.
        names = ("", tenant) if tenant == DEFAULT_TENANT else (tenant,)
        return await self._evict(scope, tenant, tenants=names)

    async def _evict(
        self,
        scope: Scope,
        target: str,
        *,
        engine: int | None = None,
        page: int | None = None,
        tenants: Sequence[str | None] = (None,),
    ) -> EvictAnswer:
        pages = in_use = 0
        async with self._record.around_action(scope, "prefix.evict", target) as told:
            try:
                for tenant in tenants:
                    gone, kept = await self._fleet.operating.evict(engine, page, tenant)
                    pages, in_use = pages + gone, in_use + kept
            except EvictionRefused as refusal:
                # The one reason that is about the page, and not about the eviction strategy.
                if engine is not None and page is not None and "not cached" in str(refusal):
                    raise _not_cached(engine, page) from refusal
                raise InvalidRequest(str(refusal), param="eviction") from refusal
            told |= {"pages": pages, "in_use": in_use}
        _log.warning("prefix cache: %d pages evicted by %s", pages, peer_in(scope))
        return EvictAnswer(pages, in_use)

    def _target(self, scope: Scope) -> tuple[int, int]:
        """Parse the engine and page of a route.

        Raises:
            NotFound: there is no such engine or page.
            EngineUnavailable: the engine does not serve.
        """
        engine, page = scope["path_params"]["engine"], scope["path_params"]["page"]
        replicas = self._fleet.status()
        if not 0 <= engine < len(replicas):
            raise NotFound(f"there is no engine {engine}; there are 0 to {len(replicas) - 1}")
        model = replicas[engine].model
        if model is None:
            raise EngineUnavailable(f"engine {engine} is not loaded yet; try again", retry_after=2)
        if not 0 <= page < model.num_pages:
            raise NotFound(f"there is no page {page}; there are 0 to {model.num_pages - 1}")
        return engine, page


def _not_cached(engine: int, page: int) -> NotFound:
    return NotFound(f"page {page} of engine {engine} is not cached, or no longer")


def prefix_routes(prefixes: PrefixRoutes) -> list[Route]:
    """All routes of pins and evictions."""
    page = "/admin/prefixes/{engine:int}/{page:int}"
    return [
        Route(f"{page}/pin", AdminEndpoint(prefixes.pin), methods=["PUT"]),
        Route(page, AdminEndpoint(prefixes.evict_page), methods=["DELETE"]),
        Route("/admin/prefixes", AdminEndpoint(prefixes.evict), methods=["DELETE"]),
    ]
