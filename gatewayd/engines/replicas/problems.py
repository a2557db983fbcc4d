"""Unresolved problems of an engine, for health monitoring of the daemon.

A hung engine is replaced, which is not a problem of the daemon. It is one if the engine is silent
without being declared lost, or if its replacement does not become ready.
"""

from __future__ import annotations

from gatewayd.engines.api import ReplicaState
from gatewayd.engines.replicas.replica import Replica

_BURY_SECONDS = 60.0
"""Maximum seconds to end one engine and start the next."""


def problem_of(replica: Replica) -> str:
    """Describe a replica's problem; empty if there is none, or if it is reported already."""
    state, heartbeat = replica.state, replica.heartbeat
    patience = heartbeat.patience
    if replica.is_over or state is ReplicaState.UNLOADED:
        return ""
    if state is not ReplicaState.READY:
        if heartbeat.silence > patience.load_seconds + _BURY_SECONDS:
            return f"{replica.label} has been {state.value} for {heartbeat.silence:.0f} s"
    elif not replica.is_responsive:
        return f"{replica.label} has been silent for {heartbeat.silence:.0f} s"
    elif heartbeat.stalled_seconds > 2 * patience.limit(replica.model):
        return f"{replica.label} has computed nothing for {heartbeat.stalled_seconds:.0f} s"
    return ""
