"""Structs of the admin API for the models of the catalogue."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec


def about_model(route: str, model: str | None) -> str:
    """Return a route of the admin API with the model that the call is about.

    Args:
        route: path, with or without a query.
        model: its name; None leaves the route unchanged, which is about the first model.
    """
    if model is None:
        return route
    return f"{route}{'&' if '?' in route else '?'}model={quote(model, safe='')}"


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the catalogue.

    Attributes:
        name: of the model.
        names: further names that requests may use.
        state: ``ready``, ``asleep`` (loaded by the next request), ``loading``, ``unloading``,
            ``unloaded`` by an operator, ``paused``, or ``failed``.
        is_pinned: whether it is never unloaded for another model.
        host_bytes: host memory that it takes while it is loaded.
        device_bytes: device memory that it takes while it is loaded.
        loads: number of loads.
        unloads: number of times that it was unloaded for another model.
        load_seconds: time of its last load, or an estimate.
        num_requests: requests since the start.
        idle_seconds: since its last request ended; 0 while it has requests.
    """

    name: str
    names: list[str]
    state: str
    is_pinned: bool
    host_bytes: int
    device_bytes: int
    loads: int
    unloads: int
    load_seconds: float
    num_requests: int
    idle_seconds: float


class CatalogueView(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /admin/models``.

    Attributes:
        models: in the order of the configuration.
        host_bytes: host memory of loaded models.
        host_limit: ``[catalogue] memory``; None for no limit.
        device_bytes: device memory of loaded models.
        device_limit: ``[catalogue] device_memory``; None for no limit.
    """

    models: list[ModelRow]
    host_bytes: int
    host_limit: int | None
    device_bytes: int
    device_limit: int | None


class AddModelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``PUT /admin/models/{name}``.

    Attributes:
        table: as ``[models.NAME]`` of the configuration.
    """

    table: dict[str, Any]


class RemoveModelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``DELETE /admin/models/{name}``.

    Attributes:
        seconds: time for its running requests.
    """

    seconds: float = 10.0


class ModelChanged(msgspec.Struct, frozen=True):
    """Result of a change of the catalogue.

    Attributes:
        name: of the model.
        done: ``added`` or ``removed``.
    """

    name: str
    done: str
