"""Authorization: the right that each path requires of an API key; unknown paths are denied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.routing import BaseRoute, Route

from gatewayd.catalogue.catalogue import Catalogue
from gatewayd.errors import NotFound, PermissionDenied
from gatewayd.tenants.principal import (
    BATCHES,
    EVERYTHING,
    FILES,
    INFER,
    METRICS,
    MODELS,
    Principal,
)

_OURS: Mapping[str, Iterable[str]] = {
    INFER: (
        "/v1/chat/completions",
        "/v1/chat/completions/render",
        "/v1/completions",
        "/v1/completions/render",
        "/v1/embeddings",
        "/v1/decisions",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/score",
        "/score",
        "/tokenize",
        "/v1/tokenize",
        "/detokenize",
        "/v1/detokenize",
        "/v1/watermark/detect",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/responses/{response_id}",
        "/v1/responses/{response_id}/cancel",
        "/v1/responses/{response_id}/input_items",
    ),
    FILES: ("/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content"),
    BATCHES: ("/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"),
    MODELS: (
        "/v1/models",
        "/v1/models/{model:path}",
        "/version",
        "/v1/gateway/compat",
        "/v1/gateway/usage",
        "/openapi.json",
    ),
    # These expose data of all tenants, in metrics and in the details of readiness.
    METRICS: ("/metrics", "/livez", "/readyz", "/health"),
}
OURS = {path: right for right, paths in _OURS.items() for path in paths}


class ProtocolEndpoint:
    """Marker of endpoints of protocol plugins, which require the right to use a model.

    Attributes:
        is_operators: whether they are for the operator alone instead.
    """

    __slots__ = ()
    is_operators: bool


class Rights:
    """Required rights of an app's paths.

    Args:
        routes: all routes; those of protocols require the right to use a model.
        catalogue: the served models.
    """

    def __init__(self, routes: Iterable[BaseRoute], catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._fixed: dict[str, str] = {}
        self._patterns: list[tuple[Route, str]] = []
        for route in routes:
            if not isinstance(route, Route):
                continue
            if isinstance(route.endpoint, ProtocolEndpoint):
                right = EVERYTHING if route.endpoint.is_operators else INFER
            else:
                # A route that is missing in the table is for the operator only.
                right = OURS.get(route.path, EVERYTHING)
            if route.param_convertors:
                self._patterns.append((route, right))
            else:
                self._fixed[route.path] = right

    def check(self, principal: Principal, path: str) -> None:
        """Check that a key has the right that a path requires.

        Raises:
            PermissionDenied: the key lacks the right.
            NotFound: the path is unknown, which no right permits.
        """
        right = self._fixed.get(path)
        if right is None:
            found = [right for route, right in self._patterns if route.path_regex.match(path)]
            if not found:
                raise NotFound(f"there is no {path[:128]}; /openapi.json lists the routes")
            # The router also takes the first match.
            right = found[0]
        if right == EVERYTHING:
            raise PermissionDenied("this path is for the operator only")
        principal.check(right)
        if right == INFER and not principal.visible(self._catalogue.names):
            # The path concerns a model that this key may not use.
            principal.check_use(self._catalogue.names[0])
