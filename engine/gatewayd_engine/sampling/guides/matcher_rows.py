"""Guided sequences, and the masks of one step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.sampling.guides.compiler import CompiledGrammar, Guide
from gatewayd_engine.sampling.guides.cost_limits import GrammarCostLimit
from gatewayd_engine.sampling.guides.reasoning_matcher import ReasoningMatcher
from gatewayd_hooks.guiding import Matcher


@dataclass(slots=True, eq=False)
class GuidedSequence:
    """A sequence that follows a grammar.

    Attributes:
        compiled: grammar of the sequence.
        matcher: state in its reasoning or its grammar.
        pace: limit of its cost.
        has_ended: whether an end token was accepted, after which the matcher is not used any more.
        fault: reason why it cannot continue; None if it can.
    """

    compiled: CompiledGrammar
    matcher: Matcher | ReasoningMatcher
    pace: GrammarCostLimit
    has_ended: bool = False
    fault: Fault | None = None

    @property
    def guided(self) -> Matcher | None:
        """The guide's own matcher; None during reasoning."""
        return self.matcher.guided if isinstance(self.matcher, ReasoningMatcher) else self.matcher

    @property
    def has_failed(self) -> bool:
        """Whether the sequence cannot continue."""
        return self.fault is not None


@dataclass(slots=True)
class MaskStep:
    """Token masks of one step: after the last token of each guided sequence, and after its drafts.

    Attributes:
        guided: guided sequences, shape ``[n]``.
        drafts: drafts of each, as a chain.
        masks: shape ``[masks, words]``.
        index: index in ``masks``, by ``id`` of the sequence and draft depth.
        faults: exceptions, by sequence whose matcher raised, or by guide for batched calls.
        seconds: time that each guide took.
    """

    guided: list[GuidedSequence]
    drafts: list[list[int]]
    masks: NDArray[np.int32]
    index: dict[tuple[int, int], int] = field(default_factory=dict)
    faults: list[tuple[GuidedSequence | Guide, BaseException]] = field(default_factory=list)
    seconds: dict[Guide, float] = field(default_factory=dict)

    def at(self, guided: GuidedSequence, depth: int) -> int | None:
        """Return the index of a sequence's mask after ``depth`` drafts; None if there is none."""
        return self.index.get((id(guided), depth))

    def allocate(self, guided: GuidedSequence, depth: int) -> NDArray[np.int32]:
        """Allocate the mask of a sequence after ``depth`` drafts."""
        index = self.index[id(guided), depth] = len(self.index)
        mask: NDArray[np.int32] = self.masks[index]
        return mask
