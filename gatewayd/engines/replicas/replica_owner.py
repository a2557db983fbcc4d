"""Who has a replica, and is told what becomes of it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from gatewayd_engine.process.inspect_messages import Looked
from gatewayd_engine.process.messages import Evicted, Pinned, StepOutput, Swapped

ReplicaT = TypeVar("ReplicaT", contravariant=True)


class ReplicaOwner(Protocol[ReplicaT]):
    """Who is told; every method is called from the event loop and returns soon."""

    def on_ready(self, replica: ReplicaT) -> None:
        """It serves from now on."""

    def on_step(self, replica: ReplicaT, step: StepOutput) -> None:
        """It has made a step. ``FrameError`` from here ends this engine."""

    def on_swapped(self, replica: ReplicaT, event: Swapped) -> None:
        """It has replaced a strategy, or refused to."""

    def on_pinned(self, replica: ReplicaT, event: Pinned) -> None:
        """It has pinned what is cached of a prompt, or cannot."""

    def on_evicted(self, replica: ReplicaT, event: Evicted) -> None:
        """It has given up cached pages, or refuses to."""

    def on_inspected(self, replica: ReplicaT, event: Looked) -> None:
        """It has said how it is, or which pages go on from one."""

    def on_lost(self, replica: ReplicaT, reason: str) -> None:
        """It serves no longer; called once for each ``on_ready``."""
