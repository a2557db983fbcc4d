"""Logits processors: change the logits of some rows before sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

# Penalties are in the resources; plugins import them from here, too.
from gatewayd_hooks.resources import Penalise as Penalise
from gatewayd_hooks.resources import PenaltyColumns as PenaltyColumns
from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources


class RequestRefused(Exception):
    """A request asks for what cannot be: its client gets 400 and this sentence."""


class SamplingView(Protocol):
    """The sampling parameters of one request, as a processor may read them."""

    @property
    def temperature(self) -> float:
        """0 is greedy."""

    @property
    def frequency_penalty(self) -> float:
        """Times a token's count in the answer; 0 is off."""

    @property
    def presence_penalty(self) -> float:
        """Once for a token in the answer; 0 is off."""

    @property
    def repetition_penalty(self) -> float:
        """Divisor for tokens of prompt and answer; 1 is off."""

    @property
    def min_tokens(self) -> int:
        """Tokens before an end token may come."""

    @property
    def ignore_eos(self) -> bool:
        """The model's end tokens do not end the request."""

    @property
    def logit_bias(self) -> list[tuple[int, float]]:
        """Pairs of token id and addend."""

    @property
    def stop_token_ids(self) -> list[int]:
        """Tokens that end the request."""

    @property
    def tenant(self) -> str:
        """Whose request it is; empty without tenants."""

    @property
    def extra(self) -> dict[str, Any]:
        """Parameters for plugins, from the request's ``extra_args``."""


class LogitsProcessor(Strategy, Protocol):
    """Acts once per step on the rows that asked for it.

    A row is a place in the running batch; ``admit`` and ``remove`` bracket its use by one
    sequence. A sequence that is preempted is removed and admitted again later, with the
    tokens it had generated.
    """

    def open(self, resources: EngineResources) -> None:
        """Make the buffers: rows are ``0 .. max_running - 1``."""

    def admit(
        self, row: int, params: SamplingView, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> bool:
        """A sequence takes a row.

        Args:
            row: its place.
            params: what the request asked for.
            prompt: prompt ids, shape ``[prompt_len]``.
            output: ids generated so far, shape ``[output_len]``.

        Returns:
            Whether the row wants this processor; if not, it is not called for it again.

        Raises:
            RequestRefused: it asks for what cannot be.
        """

    def remove(self, row: int) -> None:
        """The row is given back. Called only for rows that were admitted with True."""

    def append(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Tokens were sampled for rows of this processor.

        Args:
            rows: row numbers, int64, shape ``[n]``, no row twice; on the CPU.
            tokens: sampled ids, int64, shape ``[n]``; where they were sampled. Reading them on the
                CPU waits for a GPU, whose next step may be queued already: see ``TokenReader``.
        """

    def apply(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Change logits in place.

        Args:
            logits: float32, shape ``[batch, vocab_size]``, on ``resources.device``.
            index: which lines of ``logits`` to change, int64, shape ``[n]``; on the CPU.
            rows: the row of each of those lines, int64, shape ``[n]``; on the CPU.
        """


@runtime_checkable
class TokenReader(Protocol):
    """A processor that reads sampled tokens on the host, to hash them or to follow them.

    It is told of a GPU's tokens when they have been copied, while the GPU computes the layers of
    the next step: ``append`` is called with a tensor of the CPU, before the next ``apply`` or
    ``forced``. A row that is removed before that is left out.

    Attributes:
        reads_tokens: True.
    """

    reads_tokens: bool


@runtime_checkable
class ForcingProcessor(Protocol):
    """A processor that knows of tokens that must come next, as grammars do.

    The drafter ``forced`` guesses them, so that several take one step.
    """

    def forced(self, row: int) -> Sequence[int]:
        """The only tokens that ``apply`` would leave possible next, in order; often none."""
