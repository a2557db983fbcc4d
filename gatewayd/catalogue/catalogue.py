"""The targets that the daemon serves and the routes to them, by name."""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd.catalogue.route import ModelRoute
from gatewayd.catalogue.target import Target
from gatewayd.engines.api import ReplicaState
from gatewayd.errors import EngineUnavailable, ModelNotFound

_ENDED = (ReplicaState.FAILED, ReplicaState.STOPPED)


class Catalogue:
    """Names and their targets; changed while requests run, from the event loop only.

    Attributes:
        targets: in the order of the configuration; the first serves requests that name no model.
        routes: by name.
        names: of all targets and routes, in order.
    """

    def __init__(self, targets: Sequence[Target], routes: Sequence[ModelRoute] = ()) -> None:
        self.targets: tuple[Target, ...] = ()
        self.routes = {route.name: route for route in routes}
        self._by_name: dict[str, Target] = {}
        # By present version: the splits, which alone lead to versions on trial.
        self._splits: dict[Target, ModelRoute] = {}
        self._starting: list[Target] | None = None  # from the first look on
        self._set(targets)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all targets and routes, in order."""
        return (*self._by_name, *self.routes)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name or name in self.routes

    @property
    def default(self) -> Target:
        """The target of requests that name no model."""
        return self.targets[0]

    @property
    def is_ready(self) -> bool:
        """Whether a request for some target would be served now.

        At the start only when each target that is loaded with the daemon was ready or has failed.
        """
        return not self._is_starting() and any(target.fleet.is_ready for target in self.targets)

    @property
    def condition(self) -> str:
        """``ready``; ``degraded`` if only some targets serve; or why the first does not."""
        if self._is_starting():
            return "not_ready"
        ready = [target.fleet.is_ready for target in self.targets]
        if any(ready):
            return "ready" if all(ready) else "degraded"
        return self.default.fleet.condition

    def find(self, name: str) -> Target:
        """Return the target of a name; for a route, the first of its targets that is served.

        Raises:
            ModelNotFound: it is not served.
            EngineUnavailable: it is a route without a served target.
        """
        # Before a request may load a target that sleeps: that one is not of the start.
        self._is_starting()
        target = self._by_name.get(name)
        if target is None and (route := self.routes.get(name)) is not None:
            target = next((one for _, one in self.reached_by(route)), None)
            if target is None:
                raise no_target(name)
        if target is None:
            raise not_served(name, self.names)
        return target

    def route_of(self, name: str | None) -> ModelRoute | None:
        """Return the route that a name stands for, or the split between versions of its model."""
        if name is None:
            return None
        if (route := self.routes.get(name)) is not None:
            return route
        target = self._by_name.get(name)
        return None if target is None else self._splits.get(target)

    def divide(self, split: ModelRoute) -> None:
        """Send requests for a model to one of two versions, from now on.

        Args:
            split: chooses between its ``versions``, of which no name stands for the second.
        """
        self._splits[split.versions[0]] = split

    def is_divided(self, target: Target) -> bool:
        """Whether another version of a model is on trial."""
        return target in self._splits

    def unite(self, stable: Target) -> None:
        """Send all requests for a model to its present version."""
        self._splits.pop(stable, None)

    def promote(self, stable: Target, promoted: Target) -> None:
        """Replace a version of a model by another one, that has the same names."""
        self.unite(stable)
        self._set([promoted if one is stable else one for one in self.targets])

    def reached_by(self, route: ModelRoute) -> list[tuple[str, Target]]:
        """Return the served targets of a route, each with the route's name for it."""
        if route.versions:
            return [(one.name, one) for one in route.versions]
        found = [(name, self._by_name.get(name)) for name in route.targets]
        return [(name, target) for name, target in found if target is not None]

    def routes_to(self, target: Target) -> list[str]:
        """Return the names of the routes that have it among their targets."""
        routes = self.routes.values()
        return [route.name for route in routes if not set(target.names).isdisjoint(route.targets)]

    def add(self, target: Target) -> None:
        """Serve another target.

        Raises:
            ValueError: one of its names is taken.
        """
        self._set([*self.targets, target])

    def remove(self, target: Target) -> None:
        """Stop serving a target; requests that have found it continue."""
        self._set([one for one in self.targets if one is not target])

    def _is_starting(self) -> bool:
        """Whether a target is still being loaded that was so at the first call."""
        if self._starting is None:
            self._starting = list(self.targets)
        if self._starting:
            self._starting = [one for one in self._starting if one in self.targets and _loads(one)]
        return bool(self._starting)

    def _set(self, targets: Sequence[Target]) -> None:
        by_name: dict[str, Target] = {}
        for target in targets:
            for name in target.names:
                if name in by_name or name in self.routes:
                    raise ValueError(f"two models are named {name!r}: a name stands for one")
                by_name[name] = target
        self._by_name, self.targets = by_name, tuple(targets)


def _loads(target: Target) -> bool:
    """Whether a target is being loaded for the first time; False if it sleeps."""
    fleet = target.fleet
    if fleet.model is not None or fleet.condition != "not_ready":
        return False
    return not all(replica.state in _ENDED for replica in fleet.status())


def no_target(route: str) -> EngineUnavailable:
    """Return the error for a route of whose targets none is served."""
    return EngineUnavailable(f"no target of the route {route!r} is served now", retry_after=5.0)


def not_served(name: str, served: Sequence[str]) -> ModelNotFound:
    """Return the error for a model name that is not served."""
    return ModelNotFound(
        f"the model {name[:256]!r} does not exist; served: {', '.join(served)}", param="model"
    )
