"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gatewayd.catalogue.catalogue import not_served
from gatewayd.catalogue.target import Target
from gatewayd.http.asgi import Receive, Scope, Send, send_json
from gatewayd.http.services import Services
from gatewayd.tenants.principal import principal_of


class ModelsRoute:
    """Route that lists the models visible to the key."""

    label = "/v1/models"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the list."""
        names = principal_of(scope).visible(self._services.catalogue.names)
        data = [model_object(self._services, name) for name in names]
        first, last = (names[0], names[-1]) if names else (None, None)
        pages = {"has_more": False, "first_id": first, "last_id": last}
        await send_json(send, {"object": "list", "data": data, **pages})


class OneModelRoute:
    """Route that describes one model."""

    label = "/v1/models/{id}"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the model object, or 404."""
        name, services = scope["path_params"]["model"], self._services
        names = principal_of(scope).visible(services.catalogue.names)
        # A model that the key may not use looks like one that is not served.
        if name not in names:
            raise not_served(name, names)
        await send_json(send, model_object(services, name))


def model_object(services: Services, name: str) -> dict[str, Any]:
    """Build OpenAI's model object, with fields for clients of Anthropic and local servers."""
    catalogue = services.catalogue
    route = catalogue.routes.get(name)
    if route is None:
        target: Target | None = catalogue.find(name)
        routes = {}
    else:
        # None of them may be served: the route is listed all the same.
        target = next((one for _, one in catalogue.reached_by(route)), None)
        routes = {"routes_to": list(route.targets)}
    created = datetime.fromtimestamp(services.created, UTC)
    return {
        "id": name,
        "object": "model",
        "created": services.created,
        "owned_by": "gatewayd",
        "type": "model",
        "display_name": name,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "root": name if route is not None or target is None else target.name,
        "parent": None,
        "max_model_len": None if target is None else target.max_model_len,
        **routes,
    }
