"""What is known of the attention of rows: means of each place, and what is attended to meanwhile.

Between two tokens that attend to all, a row's places stay: the newest takes the slot of the one
that is worth least. What they are given meanwhile is added up, and made part of the means at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from gatewayd_kvc_predictor.network import KEPT, RATES, Network, image

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Memory:
    """Of each row, layer and key head.

    Args:
        layers: that select.
        rows: most sequences at once.
        heads: of queries.
        kv_heads: of keys; divides ``heads``.
        longest: most tokens of a sequence.
        most: most places that are attended to.
    """

    def __init__(
        self, layers: int, rows: int, heads: int, kv_heads: int, longest: int, most: int
    ) -> None:
        # By numpy: memory is taken as it is written to, and small parts are written to sooner.
        # See ``KEPT``.
        kept = np.zeros((rows, layers, kv_heads, KEPT, longest), np.float32)
        self._kept = torch.from_numpy(kept)
        # Of the slots: what they stand for, best first, and what they were given meanwhile.
        self._places = np.zeros((rows, layers, kv_heads, most), np.int64)
        self._given = np.zeros((rows, layers, heads, most), np.float32)
        self._times = np.zeros((rows, most), np.float32)
        self._slots = np.zeros(rows, np.int64)
        self._tokens = np.zeros(rows, np.int64)
        # Up to where its means have been written.
        self._reach = np.zeros(rows, np.int64)
        # The length when its places were chosen, and up to which they have the newest.
        self._chosen_at = np.zeros(rows, np.int64)
        self._has = np.zeros(rows, np.int64)
        # The length at which few were added last, by layer.
        self._added = np.zeros((layers, rows), np.int64)
        self._lasts = self._kept[:, :, :, 0].unbind(1)
        self._givens = torch.from_numpy(self._given).unbind(1)
        self._all_places = torch.from_numpy(self._places)
        self._rates = torch.tensor(RATES)

    def clear(self, row: int) -> None:
        """Forget what was attended to."""
        self._kept[row, ..., : self._reach[row]] = 0
        self._slots[row] = self._tokens[row] = self._reach[row] = 0
        self._added[:, row] = 0

    def slots(self, row: int) -> int:
        """How many places it attends to; 0 before any are chosen."""
        return int(self._slots[row])

    def chosen_at(self, row: int) -> int:
        """Tokens that there were when its places were chosen."""
        return int(self._chosen_at[row])

    def see_all(self, layer: int, rows: torch.Tensor, mass: torch.Tensor) -> None:
        """Take note of what tokens gave to all places, ``[n, kv_heads, longest of them]``."""
        longest = mass.shape[-1]
        self._lasts[layer][..., :longest].index_copy_(0, rows, mass)
        at = rows.numpy()
        self._reach[at] = np.maximum(self._reach[at], longest)

    def see_few(
        self, layer: int, rows: torch.Tensor, lengths: NDArray[np.int64], weights: torch.Tensor
    ) -> None:
        """Add what tokens gave to the places of their rows' slots, ``[n, heads, k]``.

        What is shown of a token once more, as its step is computed again, is not added again.
        """
        at = rows.numpy()
        is_new = self._added[layer, at] != lengths
        if not is_new.all():
            new = torch.from_numpy(is_new)
            rows, weights = rows[new], weights[new]
        self._added[layer, at] = lengths
        self._givens[layer][..., : weights.shape[-1]].index_add_(0, rows, weights)

    def learn(self, row: int, length: int) -> None:
        """Make what was seen part of the means: of few places, and then of a token that saw all.

        Args:
            row: whose.
            length: tokens that there were when all was attended to.
        """
        kept, slots = self._kept[row], self.slots(row)
        means = kept[:, :, 1:]
        times = torch.from_numpy(self._times[row, :slots])
        if slots and self._times[row, 0]:
            index = self._all_places[row, :, :, None, :slots].expand(-1, -1, len(RATES), -1)
            by_head = torch.from_numpy(self._given[row, ..., :slots])
            given = torch.unflatten(by_head, 1, (means.shape[1], -1)).mean(2) / times.clamp_min(1)
            given = given[:, :, None]
            far = 1 - (1 - self._rates[:, None]) ** times
            now = means.gather(-1, index)
            means.scatter_(-1, index, now.add_((given - now).mul_(far)))
        self._tokens[row] += 1
        # At first they are plain means: there is nothing to be forgotten.
        far = self._rates.clamp_min(1 / float(self._tokens[row]))[:, None]
        now = means[..., :length]
        now += (kept[:, :, :1, :length] - now).mul_(far)
        self._slots[row] = 0

    def choose(self, row: int, length: int, slots: int, network: Network) -> None:
        """Foresee what the next tokens attend to, and give the best places slots.

        Args:
            row: whose.
            length: tokens that there are.
            slots: how many places, at most the length.
            network: foresees.
        """
        kept = self._kept[row, ..., :length]
        scores = network(image(kept.flatten(0, 1)))
        best = scores.topk(slots, -1).indices
        self._all_places[row, ..., :slots] = best.view(*kept.shape[:2], slots)
        # Slots beyond those that it had may have been given something: a line that is no number
        # adds that to as many as the widest of the lines beside it has.
        self._given[row, ..., :slots] = 0
        self._times[row, :slots] = 0
        self._slots[row] = slots
        self._chosen_at[row] = self._has[row] = length

    def go_on(self, row: int, length: int) -> None:
        """Give slots to the tokens that have come; those that were worth least lose theirs."""
        chosen_at, slots = int(self._chosen_at[row]), self.slots(row)
        end = slots - (int(self._has[row]) - chosen_at)
        begin = slots - (length - chosen_at)
        newest = np.arange(length - 1, length - 1 - (end - begin), -1)
        self._places[row, ..., begin:end] = newest
        self._given[row, ..., begin:end] = 0
        self._times[row, begin:end] = 0
        self._times[row, :slots] += 1
        self._has[row] = length

    def places(self, rows: torch.Tensor, most: int) -> list[torch.Tensor]:
        """Of each layer, ``[n, kv_heads, most]``; -1 behind the slots of those that have fewer."""
        if len(rows) == 1:
            row = int(rows)
            return list(self._all_places[row : row + 1, ..., :most].unbind(1))
        found = self._all_places[..., :most].index_select(0, rows)
        slots = torch.from_numpy(self._slots[rows.numpy()])
        found.masked_fill_(torch.arange(most) >= slots[:, None, None, None], -1)
        return list(found.unbind(1))
