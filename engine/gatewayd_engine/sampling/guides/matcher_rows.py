"""Sequences that follow grammars, and the masks of one step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.sampling.guides.compiler import Compiled, Guide
from gatewayd_engine.sampling.guides.cost_limits import GrammarCostLimit
from gatewayd_engine.sampling.guides.reasoning_matcher import Thinking
from gatewayd_hooks.guiding import Matcher


@dataclass(slots=True, eq=False)
class Follower:
    """One sequence.

    Attributes:
        compiled: what it follows.
        matcher: where it stands, in its reasoning or its grammar.
        pace: what it costs.
        has_ended: whether an end token has come: nothing is asked of the matcher any more.
        fault: why it cannot go on.
    """

    compiled: Compiled
    matcher: Matcher | Thinking
    pace: GrammarCostLimit
    has_ended: bool = False
    fault: Fault | None = None

    @property
    def guided(self) -> Matcher | None:
        """The guide's own matcher; None while the sequence reasons."""
        return self.matcher.guided if isinstance(self.matcher, Thinking) else self.matcher

    @property
    def is_lost(self) -> bool:
        """Whether nobody knows what may come next."""
        return self.fault is not None


@dataclass(slots=True)
class MaskStep:
    """The masks of one step: of each follower at its last token, and behind its drafts.

    Attributes:
        followers: shape ``[n]``.
        drafts: of each, in a chain.
        masks: shape ``[lines, words]``.
        line: of the masks, by follower and depth.
        faults: what was raised: by whose matcher, or by all of a guide's together.
        seconds: that each guide took.
    """

    followers: list[Follower]
    drafts: list[list[int]]
    masks: NDArray[np.int32]
    line: dict[tuple[int, int], int] = field(default_factory=dict)
    faults: list[tuple[Follower | Guide, BaseException]] = field(default_factory=list)
    seconds: dict[Guide, float] = field(default_factory=dict)

    def at(self, follower: Follower, depth: int) -> int | None:
        """The mask of a follower behind so many drafts; None if there is none."""
        return self.line.get((id(follower), depth))

    def place(self, follower: Follower, depth: int) -> NDArray[np.int32]:
        """Room for the mask of a follower behind so many drafts."""
        line = self.line[id(follower), depth] = len(self.line)
        mask: NDArray[np.int32] = self.masks[line]
        return mask
