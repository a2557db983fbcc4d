"""Steps with prompts among them: captured but for attention, for a few numbers of tokens.

Such a step cannot be captured whole: what its attention launches follows from the lengths. All
between depends on the number of tokens alone, and in a small step launching it takes longer than
computing it.

A step is padded to the next number that is captured. Nobody attends for the padding and nothing of
it is written to pages; it computes something of whatever tokens and answers were there before, be
they no numbers. Each row of a matrix product, a norm or a gate follows from the same row of its
input, so that reaches no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from gatewayd_engine.attention.step_inputs import StepInputs
from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.runner.gpu.cuda_graphs import Between, Broken, Capture, Graphs

_TOKENS = (16, 32, 64, 128, 192, 256, 384, 512)


def token_counts(max_tokens: int) -> list[int]:
    """Numbers of tokens that may be captured, if a step has no more than ``max_tokens``.

    What a larger step would save is little beside what it takes.
    """
    return sorted({min(count, max_tokens) for count in _TOKENS})


class BreakingAttend(RotatingAttend):
    """Lets others attend: from ``room`` to what it returns, over the same memory in all layers.

    Args:
        room: see ``RotatingAttend``.
        attended: shape ``[num_tokens, num_heads * head_dim]``.
        between: called for each layer, in their order.
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
    """Runs the layers of steps in captured pieces.

    What one piece leaves for attention, attention for the next piece, and the last one for the
    sampler is in tensors of its own; all else that is captured dies with the step.

    Args:
        decoder: one that can be captured.
        inputs: the tensors that hold each step's tokens, for as many as the largest step has.
        at: for how many tokens.
        capture: makes captured pieces.
        progress: told the fraction that is made.
    """

    def __init__(
        self,
        decoder: Decoder,
        inputs: StepInputs,
        at: Sequence[int],
        capture: Capture,
        progress: Callable[[float], None],
    ) -> None:
        self._decoder = decoder
        self._inputs = inputs
        spec = decoder.spec
        # As ``num_bytes`` counts them.
        self._heads = self._room(spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        self._attended = self._room(spec.num_heads, spec.head_dim)
        self._hidden = self._room(spec.hidden_size)
        self._graphs: Graphs[Broken] = Graphs(
            at,
            lambda size: capture.pieces(partial(self._launch, size)),
            progress,
            "mixed steps of %s tokens",
        )

    @staticmethod
    def num_bytes(decoder: Decoder, most: int) -> int:
        """What the tensors take that stay, for steps of at most so many tokens."""
        spec = decoder.spec
        heads = 2 * (spec.num_heads + spec.num_kv_heads) * spec.head_dim
        return most * (heads + spec.hidden_size) * decoder.dtype.itemsize

    def size_for(self, num_tokens: int) -> int | None:
        """What a step of so many tokens is padded to; None if that is not captured."""
        return self._graphs.size_for(num_tokens)

    def attended(self, num_tokens: int) -> torch.Tensor:
        """Where a step's attention has to write, ``[num_tokens, num_heads, head_dim]``."""
        return self._attended[:num_tokens]

    def hidden(
        self, size: int, num_tokens: int, plan: Callable[[], RotatingAttend]
    ) -> torch.Tensor:
        """Run the layers of the step whose tokens are in the inputs.

        Args:
            size: what it is padded to.
            num_tokens: how many it has.
            plan: makes its attention, which writes to ``attended``. Asked once the first piece is
                launched: the device computes that while the host plans. If this fails, so does the
                step, of which nothing but the heads of its first layer is there.

        Returns:
            As of ``Decoder.hidden``, ``[num_tokens, hidden]``; valid until the next step.
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
        """The layers of a padded step."""
        room, attended = self._heads[:size].flatten(1), self._attended[:size].flatten(1)
        hidden = self._decoder.hidden(
            self._inputs.ids[:size],
            self._inputs.positions[:size],
            BreakingAttend(room, attended, between),
        )
        self._hidden[:size].copy_(hidden)

    def _room(self, *shape: int) -> torch.Tensor:
        decoder, most = self._decoder, len(self._inputs.ids)
        return torch.zeros((most, *shape), dtype=decoder.dtype, device=decoder.device)
