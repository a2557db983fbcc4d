"""KV memory budget: what is released by a finalizer is not lost, and blocks no reservation."""

from __future__ import annotations

import threading

from gatewayd_engine.kv.memory_budget import MemoryBudget


def test_memory_that_is_released_while_some_is_reserved_is_free_afterwards() -> None:
    budget = MemoryBudget(100)
    assert budget.reserve(10, 7) == 7

    class Collected(int):
        """A limit whose comparison releases memory, as a garbage collection may anywhere."""

        def __lt__(self, other: int) -> bool:
            budget.release(50)
            return int(self) < other

    reserved: list[int] = []
    # A daemon: a deadlock must not keep the tests from ending.
    thread = threading.Thread(
        target=lambda: reserved.append(budget.reserve(10, Collected(9))), daemon=True
    )
    thread.start()
    thread.join(10)
    assert reserved == [3]
    assert budget.free == 50
    assert budget.reserve(10, 9) == 5
    assert budget.free == 0
