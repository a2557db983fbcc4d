"""Logits processors: change the logits of some rows before sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

# Penalties are defined in the resources; plugins may also import them from here.
from gatewayd_hooks.resources import Penalise as Penalise
from gatewayd_hooks.resources import PenaltyColumns as PenaltyColumns
from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources


class RequestRefused(Exception):
    """Raised for a request whose parameters are invalid: the client gets 400 and the message."""


class SamplingView(Protocol):
    """Read-only view of the sampling parameters of one request."""

    @property
    def temperature(self) -> float:
        """Sampling temperature; 0 is greedy."""

    @property
    def frequency_penalty(self) -> float:
        """Subtracted from a token's logit for each occurrence in the answer; 0 is off."""

    @property
    def presence_penalty(self) -> float:
        """Subtracted once from the logit of a token that occurs in the answer; 0 is off."""

    @property
    def repetition_penalty(self) -> float:
        """Divisor for the logits of tokens of prompt and answer; 1 is off."""

    @property
    def min_tokens(self) -> int:
        """Number of tokens before an end token is allowed."""

    @property
    def ignore_eos(self) -> bool:
        """Whether the model's end tokens do not end the request."""

    @property
    def logit_bias(self) -> list[tuple[int, float]]:
        """Pairs of token id and addend."""

    @property
    def stop_token_ids(self) -> list[int]:
        """Tokens that end the request."""

    @property
    def tenant(self) -> str:
        """Name of the tenant; empty without tenants."""

    @property
    def extra(self) -> dict[str, Any]:
        """Parameters for plugins, from the request's ``extra_args``."""


class LogitsProcessor(Strategy, Protocol):
    """Acts once per step on the rows that asked for it.

    A row is a slot in the running batch; ``admit`` and ``remove`` bracket its use by one sequence.
    A sequence that is preempted is removed and admitted again later, with the tokens it had
    generated.
    """

    def open(self, resources: EngineResources) -> None:
        """Allocate the buffers: rows are ``0 .. max_running - 1``."""

    def admit(
        self, row: int, params: SamplingView, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> bool:
        """Start processing a sequence in a row.

        Args:
            row: its row in the batch.
            params: the request's sampling parameters.
            prompt: prompt ids, shape ``[prompt_len]``.
            output: ids generated so far, shape ``[output_len]``.

        Returns:
            Whether the row needs this processor; if not, it is not called for it again.

        Raises:
            RequestRefused: the parameters are invalid.
        """

    def remove(self, row: int) -> None:
        """Release a row. Called only for rows for which ``admit`` returned True."""

    def append(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Append sampled tokens to rows of this processor.

        Args:
            rows: row numbers, int64, shape ``[n]``, without duplicates; on the CPU.
            tokens: sampled ids, int64, shape ``[n]``; on the device that sampled them. Reading them
                on the CPU synchronizes with a GPU, whose next step may be queued already: see
                ``TokenReader``.
        """

    def apply(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Change logits in place.

        Args:
            logits: float32, shape ``[batch, vocab_size]``, on ``resources.device``.
            index: which rows of ``logits`` to change, int64, shape ``[n]``; on the CPU.
            rows: the batch row of each of those, int64, shape ``[n]``; on the CPU.
        """


@runtime_checkable
class TokenReader(Protocol):
    """Optional part of a processor that reads sampled tokens on the host, to hash or match them.

    It receives a GPU's tokens once they have been copied, while the GPU computes the layers of the
    next step: ``append`` is called with a CPU tensor, before the next ``apply`` or ``forced``. A
    row that is removed before that is omitted.

    Attributes:
        reads_tokens: True.
    """

    reads_tokens: bool


@runtime_checkable
class ForcingProcessor(Protocol):
    """Optional part of a processor that knows tokens that must come next, as grammars do.

    The drafter ``forced`` proposes them, so that several take one step.
    """

    def forced(self, row: int) -> Sequence[int]:
        """Return the tokens to which ``apply`` would leave no alternative, in order; often none."""
