"""Attention statistics of rows: moving averages per position, and sums since the last update.

Between two tokens with dense attention, a row's selection stays: new tokens replace the positions
with the lowest scores. Their attention is summed meanwhile, and merged into the averages at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from gatewayd_kvc_predictor.network import KEPT, RATES, Network, image

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Memory:
    """Attention statistics of each row, layer and KV head.

    Args:
        layers: number of sparse layers.
        rows: maximum number of sequences.
        heads: query heads.
        kv_heads: KV heads; divides ``heads``.
        longest: maximum number of tokens of a sequence.
        most: maximum number of selected positions.
    """

    def __init__(
        self, layers: int, rows: int, heads: int, kv_heads: int, longest: int, most: int
    ) -> None:
        # Through numpy, as its zeros are committed lazily and small writes are faster. See
        # ``KEPT``.
        kept = np.zeros((rows, layers, kv_heads, KEPT, longest), np.float32)
        self._kept = torch.from_numpy(kept)
        # Per slot: its position, best first, and the attention summed since the selection.
        self._places = np.zeros((rows, layers, kv_heads, most), np.int64)
        self._given = np.zeros((rows, layers, heads, most), np.float32)
        self._times = np.zeros((rows, most), np.float32)
        self._slots = np.zeros(rows, np.int64)
        self._tokens = np.zeros(rows, np.int64)
        # Position up to which its averages were written.
        self._reach = np.zeros(rows, np.int64)
        # Length at the selection, and length up to which new tokens have slots.
        self._chosen_at = np.zeros(rows, np.int64)
        self._has = np.zeros(rows, np.int64)
        # Length at the last sparse update, by layer.
        self._added = np.zeros((layers, rows), np.int64)
        # Views by layer, so that no step has to slice. Tensors and arrays share their memory.
        self._lasts = self._kept[:, :, :, 0].unbind(1)
        self._givens = torch.from_numpy(self._given).unbind(1)
        self._all_places = torch.from_numpy(self._places)
        self._rates = torch.tensor(RATES)

    def clear(self, row: int) -> None:
        """Reset a row."""
        self._kept[row, ..., : self._reach[row]] = 0
        self._slots[row] = self._tokens[row] = self._reach[row] = 0
        self._added[:, row] = 0

    def slots(self, row: int) -> int:
        """Return the number of selected positions; 0 before any selection."""
        return int(self._slots[row])

    def chosen_at(self, row: int) -> int:
        """Return the length at the selection."""
        return int(self._chosen_at[row])

    def record_dense(self, layer: int, rows: torch.Tensor, mass: torch.Tensor) -> None:
        """Store the attention of dense steps, ``[n, kv_heads, longest of them]``."""
        longest = mass.shape[-1]
        self._lasts[layer][..., :longest].index_copy_(0, rows, mass)
        at = rows.numpy()
        self._reach[at] = np.maximum(self._reach[at], longest)

    def record_sparse(
        self, layer: int, rows: torch.Tensor, lengths: NDArray[np.int64], weights: torch.Tensor
    ) -> None:
        """Add the attention to the rows' selected positions, ``[n, heads, k]``.

        Repeated calls for the same token, whose step is computed again, have no effect.
        """
        at = rows.numpy()
        is_new = self._added[layer, at] != lengths
        if not is_new.all():
            new = torch.from_numpy(is_new)
            rows, weights = rows[new], weights[new]
        self._added[layer, at] = lengths
        self._givens[layer][..., : weights.shape[-1]].index_add_(0, rows, weights)

    def merge(self, row: int, length: int) -> None:
        """Update the averages with sparse attention, and then with a token of dense attention.

        Args:
            row: to update.
            length: number of tokens at the dense step.
        """
        kept, slots = self._kept[row], self.slots(row)
        means = kept[:, :, 1:]
        times = torch.from_numpy(self._times[row, :slots])
        # The best slot is never replaced, so it has been in every sparse step since the selection.
        if slots and self._times[row, 0]:
            index = self._all_places[row, :, :, None, :slots].expand(-1, -1, len(RATES), -1)
            by_head = torch.from_numpy(self._given[row, ..., :slots])
            given = torch.unflatten(by_head, 1, (means.shape[1], -1)).mean(2) / times.clamp_min(1)
            given = given[:, :, None]
            # The weight of so many equal updates of a moving average, applied at once.
            far = 1 - (1 - self._rates[:, None]) ** times
            now = means.gather(-1, index)
            means.scatter_(-1, index, now.add_((given - now).mul_(far)))
        self._tokens[row] += 1
        # At first they are plain means.
        far = self._rates.clamp_min(1 / float(self._tokens[row]))[:, None]
        now = means[..., :length]
        now += (kept[:, :, :1, :length] - now).mul_(far)
        self._slots[row] = 0

    def select(self, row: int, length: int, slots: int, network: Network) -> None:
        """Predict the attention of the next tokens, and select the best positions.

        Args:
            row: to select for.
            length: number of tokens.
            slots: number of positions, at most the length.
            network: predicts scores.
        """
        kept = self._kept[row, ..., :length]
        scores = network(image(kept.flatten(0, 1)))
        best = scores.topk(slots, -1).indices
        self._all_places[row, ..., :slots] = best.view(*kept.shape[:2], slots)
        # Slots beyond those in use may be dirty: a row of NaN is added up to the width of the
        # widest row in its batch.
        self._given[row, ..., :slots] = 0
        self._times[row, :slots] = 0
        self._slots[row] = slots
        self._chosen_at[row] = self._has[row] = length

    def assign_new_tokens(self, row: int, length: int) -> None:
        """Give slots to new tokens, in place of the positions with the lowest scores."""
        chosen_at, slots = int(self._chosen_at[row]), self.slots(row)
        # Slots are ordered from best to worst, and replaced from the end.
        end = slots - (int(self._has[row]) - chosen_at)
        begin = slots - (length - chosen_at)
        newest = np.arange(length - 1, length - 1 - (end - begin), -1)
        self._places[row, ..., begin:end] = newest
        self._given[row, ..., begin:end] = 0
        self._times[row, begin:end] = 0
        self._times[row, :slots] += 1
        self._has[row] = length

    def places(self, rows: torch.Tensor, most: int) -> list[torch.Tensor]:
        """Return positions per layer, ``[n, kv_heads, most]``, padded with -1."""
        # Without a copy: a single row has exactly `most` slots, so there is no padding.
        if len(rows) == 1:
            row = int(rows)
            return list(self._all_places[row : row + 1, ..., :most].unbind(1))
        found = self._all_places[..., :most].index_select(0, rows)
        slots = torch.from_numpy(self._slots[rows.numpy()])
        found.masked_fill_(torch.arange(most) >= slots[:, None, None, None], -1)
        return list(found.unbind(1))
