"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gatewayd.http.asgi import Receive, Scope, Send, send_json
from gatewayd.http.services import Services, not_served
from gatewayd.tenants.principal import principal_of


class ModelsRoute:
    """All names that requests of a key may use."""

    label = "/v1/models"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        names = principal_of(scope).visible(self._services.models)
        data = [model_object(self._services, name) for name in names]
        first, last = (names[0], names[-1]) if names else (None, None)
        pages = {"has_more": False, "first_id": first, "last_id": last}
        await send_json(send, {"object": "list", "data": data, **pages})


class ModelOne:
    """One of them."""

    label = "/v1/models/{id}"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or 404."""
        name, services = scope["path_params"]["model"], self._services
        names = principal_of(scope).visible(services.models)
        if name not in names:
            raise not_served(name, names)
        await send_json(send, model_object(services, name))


def model_object(services: Services, name: str) -> dict[str, Any]:
    """OpenAI's model object, with what clients of Anthropic and of local servers look for."""
    model = services.fleet.model
    created = datetime.fromtimestamp(services.created, UTC)
    return {
        "id": name,
        "object": "model",
        "created": services.created,
        "owned_by": "gatewayd",
        "type": "model",
        "display_name": name,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "root": services.models[0],
        "parent": None,
        "max_model_len": None if model is None else model.max_model_len,
    }
