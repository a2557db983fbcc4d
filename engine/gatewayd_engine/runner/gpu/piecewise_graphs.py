"""Piecewise CUDA graphs of steps with prompts: captured except for attention, by token count.

Such a step cannot be captured as a whole: its attention launches depend on the lengths. Everything
between attention calls depends on the token count only, and in a small step launching it takes
longer than computing it.

A step is padded to the next captured token count. Attention skips the padding, and none of it is
written to pages; its rows are computed from stale tokens and attention outputs, possibly NaN. Each
row of a matrix product, a norm or a gate depends on the same row of its input only, so padding does
not affect other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from gatewayd_engine.attention.step_inputs import StepInputs
from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.servable import ServableModel
from gatewayd_engine.runner.gpu.cuda_graphs import Between, Capture, Graphs, PiecewiseLaunches

_TOKENS = (16, 32, 64, 128, 192, 256, 384, 512)


def token_counts(max_tokens: int) -> list[int]:
    """Return the token counts that may be captured, for steps of at most ``max_tokens`` tokens.

    In larger steps the savings are small compared with their duration.
    """
    return sorted({min(count, max_tokens) for count in _TOKENS})


class GraphBreakAttend(RotatingAttend):
    """Attention that breaks the graph: calls ``between``, over the same memory in all layers.

    Args:
        room: input of attention; see ``RotatingAttend``.
        attended: output of attention, shape ``[num_tokens, num_heads * out_dim]``.
        between: called for each layer, in order.
    """

    __slots__ = ("_attended", "_between", "room")

    def __init__(self, room: torch.Tensor, attended: torch.Tensor, between: Between) -> None:
        self.room = room
        self._attended = attended
        self._between = between

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """See ``RotatingAttend``."""
        self._between(layer)
        return self._attended


class PiecewiseGraphs:
    """Captured pieces of the layers of steps, by token count.

    The inputs and outputs of attention, and the final hidden states, are in persistent tensors; all
    other captured memory is only valid within the step.

    Args:
        decoder: decoder that can be captured.
        inputs: input tensors of steps, of the size of the largest step.
        at: token counts to capture.
        capture: captures launches.
        progress: receives the fraction that is done.
    """

    def __init__(
        self,
        decoder: ServableModel,
        inputs: StepInputs,
        at: Sequence[int],
        capture: Capture,
        progress: Callable[[float], None],
    ) -> None:
        self._decoder = decoder
        self._inputs = inputs
        shape = decoder.spec.attention
        # Must match ``num_bytes``.
        heads = shape.num_heads + shape.num_parts * shape.num_kv_heads
        self._heads = self._allocate(heads, shape.head_dim)
        self._attended = self._allocate(shape.num_heads, shape.out_dim)
        self._hidden = self._allocate(decoder.spec.hidden_size)
        self._graphs: Graphs[PiecewiseLaunches] = Graphs(
            at,
            lambda size: capture.pieces(partial(self._launch, size)),
            progress,
            "mixed steps of %s tokens",
        )

    @staticmethod
    def num_bytes(decoder: ServableModel, most: int) -> int:
        """Return the memory of persistent tensors, for steps of at most ``most`` tokens."""
        shape = decoder.spec.attention
        heads = shape.num_heads + shape.num_parts * shape.num_kv_heads
        numbers = heads * shape.head_dim + shape.num_heads * shape.out_dim
        return most * (numbers + decoder.spec.hidden_size) * decoder.dtype.itemsize

    def size_for(self, num_tokens: int) -> int | None:
        """Return the captured token count to which a step is padded; None if there is none."""
        return self._graphs.size_for(num_tokens)

    def attended(self, num_tokens: int) -> torch.Tensor:
        """Return the output of a step's attention, ``[num_tokens, num_heads, out_dim]``."""
        return self._attended[:num_tokens]

    def hidden(
        self, size: int, num_tokens: int, plan: Callable[[], RotatingAttend]
    ) -> torch.Tensor:
        """Run the layers of the step whose tokens are in the input tensors.

        Args:
            size: captured token count to which the step is padded.
            num_tokens: tokens of the step.
            plan: plans its attention, which writes to ``attended``. Called after the first piece
                has been launched, so that the device computes while the host plans. If it fails,
                so does the step, which has computed no more than the heads of its first layer.

        Returns:
            As ``ServableModel.hidden``, ``[num_tokens, hidden]``; valid until the next step.
        """
        heads = self._heads[:num_tokens]
        attend: RotatingAttend | None = None

        def between(layer: int) -> None:
            nonlocal attend
            if attend is None:
                attend = plan()
            attend(layer, heads)

        self._graphs[size](between)
        return self._hidden[:num_tokens]

    def _launch(self, size: int, between: Between) -> None:
        """Launch the layers of a padded step."""
        room, attended = self._heads[:size].flatten(1), self._attended[:size].flatten(1)
        hidden = self._decoder.hidden(
            self._inputs.ids[:size],
            self._inputs.positions[:size],
            GraphBreakAttend(room, attended, between),
        )
        # The capture's own memory is only valid during the replay.
        self._hidden[:size].copy_(hidden)

    def _allocate(self, *shape: int) -> torch.Tensor:
        decoder, most = self._decoder, len(self._inputs.ids)
        return torch.zeros((most, *shape), dtype=decoder.dtype, device=decoder.device)
