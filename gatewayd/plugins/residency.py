"""Fenced residency strategy, whose faults never affect a request."""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd.plugins.fenced import Fenced, InvalidStrategyAnswer
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.targets.residency import ResidencyStrategy, ResidentModel


class FencedResidency(Fenced[ResidencyStrategy]):
    """Asks the strategy; falls back to the least recently used model if that fails."""

    kind = Kind.RESIDENCY

    def evict(self, wanted: str, models: Sequence[ResidentModel], unix: float) -> str:
        """Choose one of the models, of which there is at least one."""
        name = self._call(lambda: self._ask(wanted, models, unix))
        return (
            max(models, key=lambda one: (one.idle_seconds, -one.num_running)).name
            if name is None
            else name
        )

    def preferred(self, unix: float) -> Sequence[str]:
        """Return the names of models to load while there is memory."""
        return self._call(lambda: self._names(unix)) or ()

    def _names(self, unix: float) -> list[str]:
        names = list(self._watched.preferred(unix))
        if all(isinstance(name, str) for name in names):
            return names
        raise InvalidStrategyAnswer(f"prefers {names!r:.200}, which are not names")

    def _ask(self, wanted: str, models: Sequence[ResidentModel], unix: float) -> str:
        name: str = self._watched.evict(wanted, models, unix)
        if any(model.name == name for model in models):
            return name
        raise InvalidStrategyAnswer(f"chose {name!r}, which is not loaded or may not be unloaded")
