"""Speculation: a drafter guesses the next tokens, a controller says how many are worth it.

The engine computes guesses in the same forward pass as the token before them and keeps those
that the model would have chosen itself, so an answer is the same, or drawn from the same
distribution, whatever is guessed (Leviathan et al. 2023, arXiv 2211.17192): a drafter can cost
time, never quality.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

# Models are in the resources; plugins import them from here, too.
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
    """A ``DraftModel`` that guesses several tokens by itself, as one on a GPU does.

    Between guesses nothing comes to the host, which waits once for all of them.
    """

    def guess(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
        steps: int,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Compute tokens as ``extend`` does, then guess one after another, the likeliest each.

        All guesses but the last are computed, too, behind those tokens.

        Args:
            rows: shape ``[n]``.
            starts: see ``DraftModel.extend``.
            counts: see ``DraftModel.extend``; ``starts + counts + steps - 1`` is at most
                ``max_model_len``.
            tokens: see ``DraftModel.extend``.
            steps: tokens to guess for each row, at least 1.

        Returns:
            The guesses, shape ``[n, steps]``, and the probability that the model gives to each
            behind those before it, shape ``[n, steps]``.
        """


class DraftBatch(NamedTuple):
    """Sequences that decode in the next step and want drafts.

    Attributes:
        rows: their places in the running batch, shape ``[n]``.
        lengths: tokens that each has; the last of them is not computed yet, shape ``[n]``.
        limits: drafts that each can use at most, at least 1, shape ``[n]``.
        tokens: ids of all rows, shape ``[max_running, max_model_len]``; those of a row are its
            first ``lengths``. Not to be written to.
        temperature: at which to draw, 0 where the likeliest token is to be taken (for greedy
            requests, and for those with a seed of their own, which repeat their answers),
            shape ``[n]``.
        uniform: numbers in [0, 1) to draw with, one for each draft, shape ``[n, most]`` where
            ``most`` is the largest limit.
    """

    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]
    limits: NDArray[np.int64]
    tokens: NDArray[np.int32]
    temperature: NDArray[np.float32]
    uniform: NDArray[np.float64]


class Drafts(NamedTuple):
    """Guesses, a chain or a tree for each sequence.

    Attributes:
        tokens: shape ``[n, width]``; what is beyond ``counts`` is ignored.
        counts: how many each has, from 0 to its limit, shape ``[n]``.
        parents: which draft comes before each, -1 for the sequence's last token; parents stand
            before their children, and no two children of one parent are the same token, shape
            ``[n, width]``. None for chains, where each follows the one before.
        probs: the distribution that each token was drawn from, float32, shape
            ``[n, width, vocab_size]``, for chains only. None where tokens were chosen and not
            drawn; so are those of sequences with temperature 0, whatever stands there.
    """

    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]
    parents: NDArray[np.int32] | None = None
    probs: torch.Tensor | None = None


class DrafterStrategy(Strategy, Protocol):
    """Guesses the next tokens."""

    def open(self, resources: EngineResources) -> None:
        """Load what is needed. ``resources.target`` works from the first ``admit`` on."""

    def admit(self, row: int) -> None:
        """Another sequence has this row from now on: forget the one before."""

    def propose(self, batch: DraftBatch) -> Drafts:
        """Guess for some rows; no guess is an answer too."""


@runtime_checkable
class ModelDrafter(Protocol):
    """A drafter that guesses with another model, ``resources.load_model``.

    At its start the engine sets aside what that model's keys and values need, for which it asks
    before ``open``; one that is swapped in later gets what is left, ``draft_memory`` at least.
    """

    def checkpoint(self, folder: str) -> str:
        """The folder of the model that ``open`` will load, where ``folder`` is the served one's."""


class Features(NamedTuple):
    """Hidden states of tokens whose place in their sequences is settled.

    Attributes:
        rows: whose they are, those of a row together, shape ``[n]``.
        positions: which token of the row, ascending within a row, shape ``[n]``.
        ids: the tokens, shape ``[n]``.
        hidden: after the model's final norm, on its device, shape ``[n, hidden_size]``. What the
            model says of the token at the next position is in them. On a GPU they are computed
            when the device comes to it: whoever asks for their numbers waits for the step.
    """

    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    hidden: torch.Tensor


@runtime_checkable
class FeatureDrafter(Protocol):
    """A drafter that also looks at the model's hidden states (Medusa, EAGLE)."""

    def observe(self, features: Features) -> None:
        """Take what steps have computed; some may be missing.

        Rows of sequences found in the cache begin late, and one that was preempted begins again.
        It is called before ``propose``, and now and then while there is nothing to propose.
        """


class Choices(NamedTuple):
    """What the model said after each token of a step's drafts, kept or not.

    Attributes:
        rows: that had drafts, shape ``[n]``.
        drafts: what was guessed for them, shape ``[n, width]``.
        counts: how many of those, shape ``[n]``.
        tokens: the model's token after the last token of the row, and after each draft; -1
            where it was not asked, shape ``[n, width + 1]``.
    """

    rows: NDArray[np.int64]
    drafts: NDArray[np.int32]
    counts: NDArray[np.int64]
    tokens: NDArray[np.int64]


@runtime_checkable
class LearningDrafter(Protocol):
    """A drafter that looks at what the model said to its drafts (lookahead)."""

    def learn(self, choices: Choices) -> None:
        """Take what the model said in the last step."""


class SpecView(NamedTuple):
    """What a controller decides on.

    Attributes:
        rows: that decode in the next step, shape ``[n]``.
        limits: drafts that each could use, by what its request still wants, shape ``[n]``.
        budget: drafts that all together can have.
        num_tokens: that the step computes anyhow.
    """

    rows: NDArray[np.int64]
    limits: NDArray[np.int64]
    budget: int
    num_tokens: int


class SpecReport(NamedTuple):
    """What came of a step.

    Attributes:
        rows: that decoded, shape ``[n]``.
        asked: drafts that the controller allowed each, shape ``[n]``.
        drafted: drafts that each got, shape ``[n]``.
        accepted: how many of them were kept, shape ``[n]``.
        num_tokens: that the step computed, drafts included.
        draft_seconds: that guessing took.
        step_seconds: that the forward pass and the rest of the step took.
    """

    rows: NDArray[np.int64]
    asked: NDArray[np.int64]
    drafted: NDArray[np.int64]
    accepted: NDArray[np.int64]
    num_tokens: int
    draft_seconds: float
    step_seconds: float


class SpecControllerStrategy(Strategy, Protocol):
    """Says how many drafts each sequence gets in each step."""

    def open(self, resources: EngineResources) -> None:
        """Learn the engine's sizes."""

    def admit(self, row: int) -> None:
        """Another sequence has this row from now on: forget the one before."""

    def decide(self, view: SpecView) -> NDArray[np.int64]:
        """Choose the drafts for each row.

        Returns:
            From 0 to each row's limit, in all at most the budget, shape ``[n]``.
        """

    def report(self, report: SpecReport) -> None:
        """Learn from a step in which something decoded."""
