"""Replay of a request's answer alone, preempted where it was preempted among others.

A KV compression that selects begins afresh with a sequence that is computed again, and with one
that was swapped unless it ``Moves``. So an answer follows from the request and from where it was
preempted, and how; and from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gatewayd_engine.scheduling.preemption import Preemption
from gatewayd_engine.state.sequence import Sequence
from gatewayd_hooks.preemption import PreemptionMode
from tests.engine.core.models import test_strategy_combinations
from tests.engine.core.models.test_strategy_combinations import LENGTH, PROMPTS, Expected
from tests.engine.core.scheduling.test_swap_preemption import preempt

History = tuple[tuple[int, PreemptionMode], ...]
"""After how many tokens of its answer a sequence was put out, and how."""


class Said(list[int]):
    """What a sequence has to say if it is never put out.

    Attributes:
        k: its prompt.
        way: how it is sampled; None for the likeliest.
        choice: which of the request's answers it is.
        is_shared: whether there are others.
    """

    def __init__(
        self, tokens: list[int], k: int, way: int | None, choice: int, *, is_shared: bool
    ) -> None:
        super().__init__(tokens)
        self.k, self.way, self.choice, self.is_shared = k, way, choice, is_shared


@dataclass(frozen=True)
class Replayed(Expected):
    """Answers of an engine with one request at a time.

    Attributes:
        alone: gives that engine; told whether the prompt is shared by several answers.
        replayed: the ways of being put out on which an answer depends.
        histories: where each was, by sequence, and by tokens of its answer.
    """

    alone: Callable[[bool], Any] = field(kw_only=True)
    replayed: tuple[PreemptionMode, ...] = field(kw_only=True)
    histories: dict[int, dict[int, PreemptionMode]] = field(default_factory=dict, kw_only=True)

    def said(self, k: int, way: int | None, n: int) -> list[list[int]]:
        """See ``Expected``."""
        return [
            Said(self._answer(k, way, choice, n > 1, ()), k, way, choice, is_shared=n > 1)
            for choice in range(n)
        ]

    def agrees(self, sequence: int, said: list[int], tokens: list[int]) -> bool:
        """See ``Expected``."""
        found = sorted(self.histories.get(sequence, {}).items())
        history = tuple(one for one in found if one[1] in self.replayed)
        if not history:
            return tokens == said
        assert isinstance(said, Said)
        return tokens == self._answer(said.k, said.way, said.choice, said.is_shared, history)

    def _answer(
        self, k: int, way: int | None, choice: int, is_shared: bool, history: History
    ) -> list[int]:
        engine = self.alone(is_shared)
        if way is None:
            choice = 0  # they are all alike
        key = k, way, choice, history
        known: dict[Any, list[int]] = engine.__dict__.setdefault("known", {})
        if key not in known:
            fields = {} if way is None else test_strategy_combinations.SAMPLED[way]
            ids = engine.submit(
                PROMPTS[k], n=choice + 1, max_tokens=LENGTH, ignore_eos=True, **fields
            )
            for at, mode in history:
                while len(engine.answers[ids[choice]].tokens) < at:
                    engine.step()
                preempt(engine, ids[choice], mode)
            known[key] = engine.run()[ids[choice]].tokens
        return known[key]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note who is put out, of engines with more than one request."""
        put_out = Preemption.requeue
        of_one = [self.alone(is_shared).core._placement.preemption for is_shared in (False, True)]

        def noted(preemption: Preemption, sequence: Sequence, mode: PreemptionMode) -> None:
            view = preemption._queue.view
            at = int(view.num_tokens[sequence.slot]) - sequence.prompt_len
            put_out(preemption, sequence, mode)
            if at and preemption not in of_one:
                # Without what was kept it is computed again, and so it is once it has been.
                modes = self.histories.setdefault(sequence.id, {})
                is_kept = sequence.swapped is not None and modes.get(at, mode) is mode
                modes[at] = PreemptionMode.SWAP if is_kept else PreemptionMode.RECOMPUTE

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Preemption, "requeue", noted)
            yield


@dataclass(frozen=True)
class Loose(Replayed):
    """Where drafts decide which steps attend to all: what is true all the same.

    An answer begins as attention to all has it begin, and is that of attention to all while it is
    too short for the compression.

    Attributes:
        at_least: tokens up to which all is attended to.
    """

    at_least: int = field(kw_only=True)

    def agrees(self, sequence: int, said: list[int], tokens: list[int]) -> bool:
        """See ``Expected``."""
        assert isinstance(said, Said)
        exact = max(1, self.at_least - len(PROMPTS[said.k]))
        return len(tokens) == LENGTH and tokens[:exact] == said[:exact]
