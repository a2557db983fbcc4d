"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gatewayd.http.asgi import Receive, Scope, Send, send_json
from gatewayd.http.services import Services


class ModelList:
    """All names that requests may use."""

    label = "/v1/models"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        data = [model_object(self._services, name) for name in self._services.models]
        pages = {"has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
        await send_json(send, {"object": "list", "data": data, **pages})


class ModelOne:
    """One of them."""

    label = "/v1/models/{id}"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or 404."""
        name = self._services.check_model(scope["path_params"]["model"])
        await send_json(send, model_object(self._services, name))


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
