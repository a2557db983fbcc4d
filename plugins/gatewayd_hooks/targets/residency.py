"""Residency: which models of a catalogue are loaded. It runs in the gateway, per load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """A loaded model that may be unloaded.

    Attributes:
        name: of the model.
        memory: bytes that unloading it frees.
        load_seconds: time that its last load took; an estimate before the first.
        num_requests: requests for it since the daemon began.
        request_rate: its requests per second, averaged over the last minutes.
        idle_seconds: since its last request ended; 0 while it has requests.
        num_running: sequences of its requests.
    """

    name: str
    memory: int
    load_seconds: float
    num_requests: int
    request_rate: float
    idle_seconds: float
    num_running: int


class ResidencyStrategy(Strategy, Protocol):
    """Chooses which model is unloaded for another one; it must not fail."""

    def open(self, resources: GatewayResources) -> None:
        """Read the name of the model that serves requests without one."""

    def evict(self, wanted: str, models: Sequence[ResidentModel], unix: float) -> str:
        """Choose the model to unload next; called until the wanted one fits.

        Args:
            wanted: name of the model that is to be loaded.
            models: the loaded models that may be unloaded, at least one, in order of the
                configuration. None of them is pinned, was loaded just now, or has requests, unless
                all others have.
            unix: time in seconds since 1970.

        Returns:
            The name of one of them.
        """

    def preferred(self, unix: float) -> Sequence[str]:
        """Return names of models to load now if there is memory for them without unloading.

        Called about once a second; an empty sequence leaves loading to requests.
        """
