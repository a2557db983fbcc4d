"""States that no strategy knows, for those that go on with the state of another."""

from gatewayd_hooks.helpers.handover import HandoverState, TakesState


def refuses_strange_states(strategy: object) -> bool:
    """Whether states of a form that it cannot know are refused; also if it takes none at all."""
    if not isinstance(strategy, TakesState):
        return True
    strange = (
        HandoverState("nobody/0", None),
        HandoverState("", ()),
        HandoverState("hash", ({}, {})),
    )
    return not any(strategy.import_state(state) for state in strange)
