"""Admin routes of the catalogue: all models, and dispatch of requests to the app of one."""

from __future__ import annotations

import time
from collections.abc import Mapping

from starlette.routing import Route

from gatewayd.admin.endpoint import AdminEndpoint
from gatewayd.catalogue.catalogue import Catalogue, not_served
from gatewayd.catalogue.managed_model import ManagedModel
from gatewayd.catalogue.model_residency import ModelResidency
from gatewayd.catalogue.target import Target
from gatewayd.errors import GatewayError
from gatewayd.http.asgi import App, Receive, Scope, Send, send_error
from gatewayd.http.query import query_of
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.wire.models import CatalogueView, ModelRow

_OF_MODELS = "/admin/models/"
_OF_REQUESTS = "/admin/requests/"


class ModelList:
    """Lists the models of the catalogue.

    Args:
        residency: loads and unloads them.
        catalogue: the targets of their requests.
    """

    def __init__(self, residency: ModelResidency, catalogue: Catalogue) -> None:
        self._residency = residency
        self._catalogue = catalogue

    async def models(self, scope: Scope, receive: Receive) -> object:
        """Return all models with their memory."""
        now = time.monotonic()
        managed = {model.name: model for model in self._residency.models}
        used, limits = self._residency.used, self._residency.limits.budget
        return CatalogueView(
            models=[
                _row(target, managed[target.name], now)
                for target in self._catalogue.targets
                if target.name in managed
            ],
            host_bytes=used.host,
            host_limit=limits.host,
            device_bytes=used.device,
            device_limit=limits.device,
        )

    @property
    def routes(self) -> list[Route]:
        """All routes."""
        return [Route("/admin/models", AdminEndpoint(self.models), methods=["GET"])]


def _row(target: Target, model: ManagedModel, now: float) -> ModelRow:
    view = model.view(now)
    return ModelRow(
        name=target.name,
        names=list(target.names[1:]),
        state=state_of(target, model),
        is_pinned=model.is_pinned,
        host_bytes=model.footprint.host,
        device_bytes=model.footprint.device,
        loads=model.loads,
        unloads=model.unloads,
        load_seconds=round(model.load_seconds, 3),
        num_requests=view.num_requests,
        idle_seconds=round(view.idle_seconds, 3),
    )


def state_of(target: Target, model: ManagedModel) -> str:
    """State of a model, as in ``ModelRow``."""
    condition = target.fleet.condition
    if model.is_evicting:
        return "unloading"
    if condition == "not_ready":
        return "failed" if model.fleet.is_over else "loading"
    return condition


class AdminModels:
    """The admin API of all models: ``?model=``, or the path, names one; else it is the first.

    A request in flight is found by its id whatever its model; of two with one ``x-request-id`` it
    is that of the named model.

    Args:
        apps: by name of the model, at least one.
        live: requests in flight of each.
    """

    def __init__(
        self, apps: Mapping[str, App], live: Mapping[str, LiveRequests[Generation]]
    ) -> None:
        self._apps = dict(apps)
        self._live = dict(live)

    def add(self, name: str, app: App, live: LiveRequests[Generation]) -> None:
        """Serve the app of another model."""
        self._apps[name], self._live[name] = app, live

    def promote(self, name: str, version: str, live: LiveRequests[Generation]) -> None:
        """Serve the app of a version in place of its model's."""
        self._apps[name], self._live[name] = self._apps.pop(version), live
        del self._live[version]

    def remove(self, name: str) -> None:
        """Stop serving the app of a model; requests in it continue."""
        del self._apps[name], self._live[name]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        try:
            app = self._find(scope)
        except GatewayError as error:
            await send_error(send, error)
            return
        await app(scope, receive, send)

    def _find(self, scope: Scope) -> App:
        first, path = next(iter(self._apps)), scope["path"]
        if path.startswith(_OF_MODELS):
            # The app itself refuses a name that is not served.
            name = path.removeprefix(_OF_MODELS).rpartition("/")[0]
            return self._apps.get(name, self._apps[first])
        name = query_of(scope).get("model", first)
        if name not in self._apps:
            raise not_served(name, tuple(self._apps))
        if path.startswith(_OF_REQUESTS):
            request = path.removeprefix(_OF_REQUESTS)
            if scope["method"] == "POST":  # followed by a verb; ids may have slashes
                request = request.rpartition("/")[0]
            name = self._model_of(request, name)
        return self._apps[name]

    def _model_of(self, request: str, named: str) -> str:
        """Return the model of a request in flight, or the named one if there is none."""
        # The named one first.
        order = sorted(self._live, key=lambda name: name != named)
        found = (name for name in order if self._live[name].find(request) is not None)
        return next(found, named)
