"""EAGLE drafting on a GPU: fixed depth and persistent tensors, for CUDA graph capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gatewayd_draft_eagle.layer import FusedInput, Layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import CaptureLaunches, TargetModel


class HiddenTokenPairs(NamedTuple):
    """Pending hidden states, and the tokens after them, each of shape ``[n, new]``.

    Attributes:
        rows: row of each; padding belongs to the row after the last.
        places: position of each within the window.
        tokens: the token after each.
        positions: of each in its sequence. The last pair of a row is the one to draft from.
    """

    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]


class CapturedDrafting:
    """Drafts ``depth`` tokens for some rows, with a single transfer to the host.

    Args:
        layer: predicts hidden states.
        target: maps hidden states to tokens.
        features: hidden states, shape ``[rows + 1, window, hidden]``; the last row is for padding.
        context: keys and values, shape ``[rows + 1, 2 * kv_heads, window + depth - 1, head_dim]``.
            Those of drafts follow the window, in a copy.
        depth: number of draft tokens in a chain.
        width: choices for each.
        capture: captures the launches.
    """

    def __init__(
        self,
        layer: Layer,
        target: TargetModel,
        features: torch.Tensor,
        context: torch.Tensor,
        depth: int,
        width: int,
        capture: CaptureLaunches,
    ) -> None:
        self._layer = layer
        self._target = target
        self._features = features
        self._context = context
        self._depth = depth
        self._width = width
        self._window = layer.window
        # Maximum of new hidden states per row after a step that accepted a whole chain.
        self.new = depth + 1
        self._padding = rows = len(features) - 1
        device = features.device
        # Fixed addresses for the graph: rows, places, tokens and positions, as in
        # ``HiddenTokenPairs``. All are padding when launches are captured.
        self._pairs = torch.zeros((4, rows * self.new), dtype=torch.int64, device=device)
        self._pairs[0] = rows
        # All True at first: a row whose mask is empty would yield NaN.
        self._seen = torch.ones(rows, depth, context.shape[2], dtype=torch.bool, device=device)
        # Tokens, then the bits of their probabilities.
        self._drafts = torch.zeros((rows, 2, depth, width), dtype=torch.int32, device=device)
        self._run = capture(self._launch, "eagle's drafts", 1)

    def guess(
        self, pairs: HiddenTokenPairs, is_seen: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Process pending pairs and draft for their rows.

        Args:
            pairs: of ``n`` rows, ``new`` each.
            is_seen: attention mask of each draft step, shape ``[depth, n, window + depth - 1]``.

        Returns:
            Tokens and their probabilities, each of shape ``[n, depth, width]``.
        """
        n = len(pairs.rows)
        # The rest is padding: content of an earlier step would be processed again.
        host = np.zeros((4, self._padding * self.new), np.int64)
        host[0, n * self.new :] = self._padding
        for column, part in zip(host, pairs, strict=True):
            column[: n * self.new] = part.reshape(-1)
        self._to_device(host, self._pairs)
        self._to_device(is_seen.transpose(1, 0, 2), self._seen[:n])
        self._run(n)
        # The only synchronization of a step.
        drafts = self._drafts[:n].cpu().numpy()
        return drafts[:, 0].astype(np.int64), drafts[:, 1].view(np.float32)

    def _to_device(self, array: NDArray[Any], to: torch.Tensor) -> None:
        host = torch.from_numpy(np.ascontiguousarray(array))
        # From pageable memory the copy would be synchronous.
        to.copy_(host.pin_memory() if to.device.type != "cpu" else host, non_blocking=True)

    def _launch(self, num_lines: int) -> None:
        layer, target, window = self._layer, self._target, self._window
        rows, places, tokens, positions = self._pairs[:, : num_lines * self.new]
        features = self._features[rows, places]
        pairs = layer.enter(features, target.embed(tokens), positions)
        # Padding overwrites itself in the last row, which is never drafted for.
        self._context[rows, :, places] = pairs.key_value
        # The last of each row's pairs is the one to draft from.
        entered = FusedInput(*(part[self.new - 1 :: self.new] for part in pairs))
        rows, positions = rows[self.new - 1 :: self.new], positions[self.new - 1 :: self.new]
        context = self._context.index_select(0, rows)
        for ahead in range(self._depth):
            predicted = layer.predict_hidden(entered, context, self._seen[:num_lines, ahead])
            top = torch.softmax(target.logits(predicted), -1).topk(self._width)
            drafts, tokens = self._drafts[:num_lines, :, ahead], top.indices[:, 0]
            drafts[:, 0].copy_(top.indices)
            drafts[:, 1].copy_(top.values.float().view(torch.int32))
            # The last draft needs no key and value.
            if ahead + 1 < self._depth:
                entered = layer.enter(predicted, target.embed(tokens), positions + ahead + 1)
                context[:, :, window + ahead] = entered.key_value
