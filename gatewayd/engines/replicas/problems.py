"""What is wrong with an engine that nobody does anything about: for whoever watches the daemon.

A hung engine is replaced by its replica, and that is no trouble of the daemon's. It is one if the
engine has fallen silent and was not declared lost yet, or if what should replace it does not.
"""

from __future__ import annotations

from gatewayd.engines.api import ReplicaState
from gatewayd.engines.replicas.replica import Replica

_BURY_SECONDS = 60.0
"""To end one engine and to begin with the next, at most."""


def trouble_of(replica: Replica) -> str:
    """One sentence; empty if the engine is well, or if it is known that it is not."""
    state, pulse = replica.state, replica.pulse
    patience = pulse.patience
    if replica.is_over or state is ReplicaState.UNLOADED:
        return ""
    if state is not ReplicaState.READY:
        if pulse.silence > patience.load_seconds + _BURY_SECONDS:
            return f"engine {replica.index} has been {state.value} for {pulse.silence:.0f} s"
    elif not replica.is_responsive:
        return f"engine {replica.index} has been silent for {pulse.silence:.0f} s"
    elif pulse.standstill > 2 * patience.limit(replica.model):
        return f"engine {replica.index} has computed nothing for {pulse.standstill:.0f} s"
    return ""
