"""Handover states of unknown formats."""

from gatewayd_hooks.helpers.handover import HandoverState, TakesState


def refuses_strange_states(strategy: object) -> bool:
    """Whether states of unknown formats are refused; also true if it imports none at all."""
    if not isinstance(strategy, TakesState):
        return True
    strange = (
        HandoverState("unknown/0", None),
        HandoverState("", ()),
        HandoverState("hash", ({}, {})),
    )
    return not any(strategy.import_state(state) for state in strange)
