"""Speculative decoding: a drafter proposes the next tokens, a controller chooses how many.

The engine verifies drafts in the same forward pass as the token before them and accepts those that
the model would have chosen itself, so an answer is the same, or drawn from the same distribution,
whatever is proposed (Leviathan et al. 2023, arXiv 2211.17192): a drafter can cost time, never
quality.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

# Models are defined in the resources; plugins may also import them from here.
from gatewayd_hooks.resources import CaptureLaunches as CaptureLaunches
from gatewayd_hooks.resources import DraftModel as DraftModel
from gatewayd_hooks.resources import Heads as Heads
from gatewayd_hooks.resources import RunPadded as RunPadded
from gatewayd_hooks.resources import TargetModel as TargetModel
from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources


@runtime_checkable
class GuessingModel(Protocol):
    """``DraftModel`` that generates several draft tokens itself, as one on a GPU does.

    Between draft tokens nothing is copied to the host, which synchronizes once for all of them.
    """

    def guess(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
        steps: int,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Compute tokens as ``extend`` does, then draft greedily, one token after another.

        All drafts but the last are computed, too, after those tokens.

        Args:
            rows: shape ``[n]``.
            starts: see ``DraftModel.extend``.
            counts: see ``DraftModel.extend``; ``starts + counts + steps - 1`` is at most
                ``max_model_len``.
            tokens: see ``DraftModel.extend``.
            steps: tokens to draft for each row, at least 1.

        Returns:
            The drafts, shape ``[n, steps]``, and the probability that the model gives to each after
            those before it, shape ``[n, steps]``.
        """


class DraftBatch(NamedTuple):
    """Sequences that decode in the next step and can use drafts.

    Attributes:
        rows: their rows in the running batch, shape ``[n]``.
        lengths: tokens of each; the last of them is not computed yet, shape ``[n]``.
        limits: maximum of drafts of each, at least 1, shape ``[n]``.
        tokens: ids of all rows, shape ``[max_running, max_model_len]``; those of a row are its
            first ``lengths``. Read-only.
        temperature: for sampling drafts, 0 where the likeliest token is to be taken (for greedy
            requests, and for those with their own seed, whose answers are reproducible), shape
            ``[n]``.
        uniform: random numbers in [0, 1) for sampling, one for each draft, shape ``[n, most]``
            where ``most`` is the largest limit.
    """

    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]
    limits: NDArray[np.int64]
    tokens: NDArray[np.int32]
    temperature: NDArray[np.float32]
    uniform: NDArray[np.float64]


class Drafts(NamedTuple):
    """Draft tokens, a chain or a tree for each sequence.

    Attributes:
        tokens: shape ``[n, width]``; entries beyond ``counts`` are ignored.
        counts: number of drafts of each, from 0 to its limit, shape ``[n]``.
        parents: index of the draft before each, -1 for the sequence's last token; parents precede
            their children, and no two children of one parent are the same token, shape ``[n,
            width]``. None for chains, where each follows the one before.
        probs: distribution that each token was sampled from, float32, shape ``[n, width,
            vocab_size]``, for chains only. None where tokens were chosen and not sampled; ignored
            for sequences with temperature 0.
    """

    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]
    parents: NDArray[np.int32] | None = None
    probs: torch.Tensor | None = None


class DrafterStrategy(Strategy, Protocol):
    """Proposes the next tokens."""

    def open(self, resources: EngineResources) -> None:
        """Load what is needed. ``resources.target`` is usable from the first ``admit`` on."""

    def admit(self, row: int) -> None:
        """Reset this row's state for a new sequence."""

    def propose(self, batch: DraftBatch) -> Drafts:
        """Propose drafts for some rows; no drafts is a valid result."""


@runtime_checkable
class ModelDrafter(Protocol):
    """Optional part of a drafter that uses another model, ``resources.load_model``.

    At its start the engine reserves the KV memory of that model, for which it calls this before
    ``open``; a drafter that is swapped in later gets what is left, ``draft_memory`` at least.
    """

    def checkpoint(self, folder: str) -> str:
        """Return the folder of the model that ``open`` will load.

        ``folder`` is the served model's.
        """


class Features(NamedTuple):
    """Hidden states of tokens that are accepted and final.

    Attributes:
        rows: row of each, those of a row together, shape ``[n]``.
        positions: position within the row, ascending within a row, shape ``[n]``.
        ids: the tokens, shape ``[n]``.
        hidden: after the model's final norm, on its device, shape ``[n, hidden_size]``; they
            determine the logits of the next position. On a GPU they are computed asynchronously:
            reading their values waits for the step.
    """

    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    hidden: torch.Tensor


@runtime_checkable
class FeatureDrafter(Protocol):
    """Optional part of a drafter that reads the model's hidden states (Medusa, EAGLE)."""

    def observe(self, features: Features) -> None:
        """Update with the hidden states of recent steps; some may be missing.

        Positions found in the prefix cache are skipped, and a preempted sequence starts over. It is
        called before ``propose``, and occasionally while there is nothing to propose.
        """


class Choices(NamedTuple):
    """Model's tokens after each draft of a step, accepted or not.

    Attributes:
        rows: rows that had drafts, shape ``[n]``.
        drafts: their draft tokens, shape ``[n, width]``.
        counts: number of drafts of each, shape ``[n]``.
        tokens: the model's token after the last token of the row, and after each draft; -1 where
            not computed, shape ``[n, width + 1]``.
    """

    rows: NDArray[np.int64]
    drafts: NDArray[np.int32]
    counts: NDArray[np.int64]
    tokens: NDArray[np.int64]


@runtime_checkable
class LearningDrafter(Protocol):
    """Optional part of a drafter that reads how the model verified its drafts (lookahead)."""

    def learn(self, choices: Choices) -> None:
        """Update with the model's tokens of the last step."""


class SpecView(NamedTuple):
    """Input of a controller's decision.

    Attributes:
        rows: rows that decode in the next step, shape ``[n]``.
        limits: drafts that each could use, by what its request still needs, shape ``[n]``.
        budget: maximum of drafts in total.
        num_tokens: tokens of the step without drafts.
    """

    rows: NDArray[np.int64]
    limits: NDArray[np.int64]
    budget: int
    num_tokens: int


class SpecReport(NamedTuple):
    """Outcome of a step.

    Attributes:
        rows: rows that decoded, shape ``[n]``.
        asked: drafts that the controller allowed each, shape ``[n]``.
        drafted: drafts that each got, shape ``[n]``.
        accepted: drafts of each that were accepted, shape ``[n]``.
        num_tokens: tokens of the step, drafts included.
        draft_seconds: time for drafting.
        step_seconds: time for the forward pass and the rest of the step.
    """

    rows: NDArray[np.int64]
    asked: NDArray[np.int64]
    drafted: NDArray[np.int64]
    accepted: NDArray[np.int64]
    num_tokens: int
    draft_seconds: float
    step_seconds: float


class SpecControllerStrategy(Strategy, Protocol):
    """Chooses the number of drafts of each sequence in each step."""

    def open(self, resources: EngineResources) -> None:
        """Read the engine's sizes."""

    def admit(self, row: int) -> None:
        """Reset this row's state for a new sequence."""

    def decide(self, view: SpecView) -> NDArray[np.int64]:
        """Choose the drafts for each row.

        Returns:
            From 0 to each row's limit, in all at most the budget, shape ``[n]``.
        """

    def report(self, report: SpecReport) -> None:
        """Update with the outcome of a step in which any row decoded."""
