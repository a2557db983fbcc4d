"""Owner of a replica, notified of its events."""

from __future__ import annotations

from typing import Protocol, TypeVar

from gatewayd_engine.process.inspect_messages import Looked
from gatewayd_engine.process.messages import Evicted, Pinned, StepOutput, Swapped

ReplicaT = TypeVar("ReplicaT", contravariant=True)


class ReplicaOwner(Protocol[ReplicaT]):
    """Receiver of a replica's events; called from the event loop, and must return soon."""

    def on_ready(self, replica: ReplicaT) -> None:
        """Handle that it has become ready to serve."""

    def on_step(self, replica: ReplicaT, step: StepOutput) -> None:
        """Handle the output of a step. ``FrameError`` from here ends this engine."""

    def on_swapped(self, replica: ReplicaT, event: Swapped) -> None:
        """Handle the answer to a swap of strategies."""

    def on_pinned(self, replica: ReplicaT, event: Pinned) -> None:
        """Handle the answer to a pin."""

    def on_evicted(self, replica: ReplicaT, event: Evicted) -> None:
        """Handle the answer to an eviction."""

    def on_inspected(self, replica: ReplicaT, event: Looked) -> None:
        """Handle the answer to an inspection, or a list of cached pages."""

    def on_lost(self, replica: ReplicaT, reason: str) -> None:
        """Handle its loss; called once for each ``on_ready``."""
