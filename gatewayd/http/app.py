"""ASGI app of the data plane: middleware, authentication, request gate and routes."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.routing import Match, Route, Router

from gatewayd.http.asgi import App, Receive, Scope, Send
from gatewayd.http.bodies import BodyBudget
from gatewayd.http.decisions.route import Decisions
from gatewayd.http.openai.chat import ChatRoute
from gatewayd.http.openai.completions import CompletionRoute
from gatewayd.http.openai.models import ModelsRoute, OneModelRoute
from gatewayd.http.openai.render import Render
from gatewayd.http.openai.tokenize import Detokenize, Tokenize
from gatewayd.http.openai.watermark import Detect
from gatewayd.http.operations import Document, LiveRoute, MetricsPage, ReadyRoute, Version
from gatewayd.http.protocols.mounted import Protocols
from gatewayd.http.rights import Rights
from gatewayd.http.schema.compat import compatibility
from gatewayd.http.schema.durable import DURABLE
from gatewayd.http.schema.openapi import document
from gatewayd.http.server.authentication import AuthenticationMiddleware, KeyCheck
from gatewayd.http.server.cors import with_cors
from gatewayd.http.server.request_gate import RequestGate
from gatewayd.http.server.request_middleware import RequestMiddleware
from gatewayd.http.services import Services
from gatewayd.http.sharing_counts import sharing_collector
from gatewayd.http.vectors.embeddings import EmbeddingsRoute
from gatewayd.http.vectors.rerank import Rerank, Score


class Routes:
    """Router with a direct lookup of fixed paths; others are matched by starlette's patterns."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._fixed: dict[tuple[str, str], App] = {
            (method, route.path): route.endpoint
            for route in router.routes
            if isinstance(route, Route) and not route.param_convertors
            for method in route.methods or ()
        }

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Dispatch a request; not a coroutine, whose frame each chunk would have to pass."""
        path = scope.get("path", "")
        app = self._fixed.get((scope.get("method", ""), path))
        if app is None:
            return self._router(scope, receive, send)
        scope["endpoint"] = app
        return app(scope, receive, send)

    def endpoint(self, scope: Scope) -> App | None:
        """Return the app that would answer a request; None if no route matches."""
        found = self._fixed.get((scope.get("method", ""), scope.get("path", "")))
        if found is not None:
            return found
        for route in self._router.routes:
            if isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
                return route.endpoint
        return None


def build_app(services: Services) -> App:
    """Build the data plane's app."""
    protocols = Protocols(services)
    router = build_router(services, protocols)
    routes = Routes(router)
    bodies = BodyBudget(services.limits.bodies_bytes)
    gate = RequestGate(routes, routes.endpoint, bodies)
    services.metrics.registry.register(sharing_collector(services, bodies, gate))
    directory = None
    if services.durable is not None:
        # Internal requests, such as the lines of batches, pass the gate without a key.
        services.durable.set_app(RequestMiddleware(gate, services.metrics))
        directory = services.durable.tenancy.directory
    guard = AuthenticationMiddleware(
        gate,
        KeyCheck(services.api_key, directory),
        Rights(router.routes, services.catalogue),
        only_local_hosts=services.only_local_hosts,
    )
    app = RequestMiddleware(guard, services.metrics, protocols.format_error)
    protocols.set_app(app)
    return with_cors(services.allowed_origins, app)


def build_router(services: Services, protocols: Protocols) -> Router:
    """Build the router with every route of the data plane."""
    tokenize, detokenize = Tokenize(services), Detokenize(services)
    chat, completion = ChatRoute(services), CompletionRoute(services)
    rerank, score = Rerank(services), Score(services)
    ready = ReadyRoute(services)
    kept = () if services.durable is None else DURABLE
    operations = [*kept, *protocols.operations]
    openapi = Document("/openapi.json", lambda: document(services.version, operations))
    compat = Document("/v1/gateway/compat", lambda: compatibility(services.version, operations))
    own = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/chat/completions/render", Render(services, chat), methods=["POST"]),
        Route("/v1/completions", completion, methods=["POST"]),
        Route("/v1/completions/render", Render(services, completion), methods=["POST"]),
        Route("/v1/embeddings", EmbeddingsRoute(services), methods=["POST"]),
        Route("/v1/decisions", Decisions(services), methods=["POST"]),
        Route("/v1/rerank", rerank, methods=["POST"]),
        Route("/v2/rerank", rerank, methods=["POST"]),
        Route("/rerank", rerank, methods=["POST"]),
        Route("/v1/score", score, methods=["POST"]),
        Route("/score", score, methods=["POST"]),
        Route("/v1/models", ModelsRoute(services), methods=["GET"]),
        Route("/v1/models/{model:path}", OneModelRoute(services), methods=["GET"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/v1/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/v1/detokenize", detokenize, methods=["POST"]),
        Route("/v1/watermark/detect", Detect(services), methods=["POST"]),
        Route("/livez", LiveRoute(), methods=["GET"]),
        Route("/readyz", ready, methods=["GET"]),
        Route("/health", ready, methods=["GET"]),
        Route("/version", Version(services), methods=["GET"]),
        Route("/metrics", MetricsPage(services), methods=["GET"]),
        Route("/v1/gateway/compat", compat, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
    ]
    if services.durable is not None:
        own += services.durable.routes(services)
    # Trailing slashes are removed before the routing; a redirect would cost a round trip.
    return Router([*own, *protocols.routes(own)], redirect_slashes=False)
