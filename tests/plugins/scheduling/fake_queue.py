"""Fake queue: what a scheduler grants."""

from gatewayd_hooks.testing.fakes import FakeQueue, FakeSequence


def granted(queue: FakeQueue) -> dict[FakeSequence, int]:
    """Tokens of the next step, in the order of the plan."""
    live = {sequence.slot: sequence for sequence in queue.running + queue.waiting}
    plan = queue.step()
    return {
        live[slot]: count
        for slot, count in zip(plan.slots.tolist(), plan.tokens.tolist(), strict=True)
    }
