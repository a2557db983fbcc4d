"""Lookahead drafting: n-grams from the model's predictions of later positions.

Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): each step also computes a window of guesses
after the last token. The model's output after each of them is the window of the next step (a Jacobi
iteration), and the tokens along these trajectories form n-grams, stored by their first token.
N-grams that begin with the last token of the sequence are verified as branches of a tree. Needs no
other model, and no repetitive text.

The paper computes several iterations of the window in one step; here there is one, and n-grams are
collected across steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gatewayd_draft_lookahead.pool import NgramPool
from gatewayd_hooks.speculation import Choices, DraftBatch, Drafts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_draft_lookahead.config import LookaheadConfig
    from gatewayd_hooks.resources import EngineResources


@dataclass(slots=True)
class _Row:
    """State of one sequence.

    Attributes:
        pool: its n-grams.
        read: number of its tokens that are in the pool.
        windows: guesses by position, the latest last.
        asked: positions of the last step's window.
        nodes: indices of the last step's drafts that were its window.
    """

    pool: NgramPool
    read: int = 0
    windows: deque[dict[int, int]] = field(default_factory=deque)
    asked: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)


class Lookahead:
    """Lookahead drafter with one pool and one window for each row."""

    def __init__(self, config: LookaheadConfig) -> None:
        self._config = config
        self._rows: dict[int, _Row] = {}

    def open(self, resources: EngineResources) -> None:
        """Do nothing: there is nothing to load."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def admit(self, row: int) -> None:
        """Reset this row's state for a new sequence."""
        config = self._config
        self._rows[row] = _Row(
            NgramPool(config.candidates, config.max_ngrams),
            windows=deque(maxlen=config.length - 1),
        )

    def propose(self, batch: DraftBatch) -> Drafts:
        """Return branches of n-grams, followed by the window."""
        n, width = len(batch.rows), int(batch.limits.max(initial=0))
        tokens = np.zeros((n, width), np.int32)
        parents = np.full((n, width), -1, np.int32)
        counts = np.zeros(n, np.int32)
        for i, row in enumerate(batch.rows.tolist()):
            length = int(batch.lengths[i])
            state = self._rows[row]
            self._read(state, batch.tokens[row], length)
            guesses, before = self._tree(state, batch.tokens[row], length, int(batch.limits[i]))
            counts[i] = len(guesses)
            tokens[i, : counts[i]] = guesses
            parents[i, : counts[i]] = before
        return Drafts(tokens, counts, parents)

    def _read(self, state: _Row, tokens: NDArray[np.int32], length: int) -> None:
        """Add n-grams from the new tokens of the sequence."""
        size = self._config.length
        if self._config.use_prompt:
            # N-grams that begin up to `size - 1` tokens before the new ones end in them.
            begin = max(state.read - size + 1, length - self._config.max_ngrams, 0)
            new = tokens[begin:length].tolist()
            for at in range(len(new) - size + 1):
                state.pool.add(new[at : at + size])
        state.read = length

    def _tree(
        self, state: _Row, tokens: NDArray[np.int32], length: int, limit: int
    ) -> tuple[list[int], list[int]]:
        """Return drafts and each one's parent."""
        guesses: list[int] = []
        before: list[int] = []
        # N-grams with a common beginning share its nodes: children of one parent must be different
        # tokens.
        children: dict[tuple[int, int], int] = {}

        def grow(parent: int, token: int) -> int:
            """Return the draft with this token and parent, created if there is room; -2 if not."""
            if (parent, token) not in children:
                if len(guesses) >= limit:
                    return -2
                children[parent, token] = len(guesses)
                guesses.append(token)
                before.append(parent)
            return children[parent, token]

        # N-grams first: if the limit is short it is the window, useful only in later steps, that is
        # cut.
        for ngram in state.pool.after(int(tokens[length - 1]))[: self._config.candidates]:
            parent = -1
            for token in ngram:
                parent = grow(parent, token)
                if parent == -2:
                    break
        window = self._window(state, tokens, length)
        state.asked, state.nodes = [], []
        parent = -1
        for offset, token in enumerate(window):
            parent = grow(parent, token)
            if parent == -2:
                break
            state.asked.append(length + offset)
            state.nodes.append(parent)
        return guesses, before

    def _window(self, state: _Row, tokens: NDArray[np.int32], length: int) -> list[int]:
        """Return the model's latest predictions of later positions.

        An arbitrary token where missing.
        """
        last = state.windows[-1] if state.windows else {}
        return [
            # Any token of the sequence will do, varied by position.
            last.get(length + offset, int(tokens[(length + offset) * 2654435761 % length]))
            for offset in range(self._config.window)
        ]

    def learn(self, choices: Choices) -> None:
        """Use the model's output for the window as the next window, and collect n-grams."""
        for i, row in enumerate(choices.rows.tolist()):
            state = self._rows.get(row)
            if state is None or not state.asked:
                continue
            outputs = choices.tokens[i]
            count = int(choices.counts[i])
            # Fewer drafts than proposed are verified if pages or the step's budget are short.
            guesses = {
                position: int(choices.drafts[i, node])
                for position, node in zip(state.asked, state.nodes, strict=True)
                if node < count
            }
            window = {
                position + 1: int(outputs[node + 1])
                for position, node in zip(state.asked, state.nodes, strict=True)
                if node < count and outputs[node + 1] >= 0
            }
            # `_collect` needs the inputs of this step; below, its outputs replace them as the next
            # window.
            state.windows.append(guesses)
            self._collect(state, window)
            state.windows[-1] = {**guesses, **window}
            state.asked, state.nodes = [], []

    def _collect(self, state: _Row, window: dict[int, int]) -> None:
        """Add n-grams across steps: a guess of each, and the model's output last."""
        size = self._config.length
        steps = [*state.windows, window]
        if len(steps) < size:
            return
        steps = steps[-size:]
        for position in window:
            # A diagonal of the Jacobi iteration: each token is a step's guess for the position
            # after that of the step before.
            ngram = [step.get(position - size + 1 + offset) for offset, step in enumerate(steps)]
            known = [token for token in ngram if token is not None]
            if len(known) == size:
                state.pool.add(known)
