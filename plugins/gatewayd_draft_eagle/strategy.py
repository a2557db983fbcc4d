"""Predicts the model's hidden states autoregressively, and the tokens they map to.

EAGLE (Li et al. 2024, arXiv 2401.15077): hidden states are easier to predict than tokens, if the
token that was sampled from each is known; one decoder layer is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gatewayd_draft_eagle.captured_drafting import CapturedDrafting, HiddenTokenPairs
from gatewayd_draft_eagle.layer import FusedInput, Layer
from gatewayd_draft_eagle.tree import DraftExpansion, likeliest
from gatewayd_hooks.speculation import DraftBatch, Drafts, Features

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gatewayd_draft_eagle.config import EagleConfig
    from gatewayd_hooks.resources import EngineResources, TargetModel

_NOTHING = -2  # never the position before a sequence's last token


class Eagle:
    """Stores the last hidden states of each row, and the layer's keys and values for them.

    Position ``p`` of a row is stored at index ``p % window``. A hidden state is pending until the
    token after it is known and its row needs drafts: then it is processed into a key and a value.
    """

    _target: TargetModel
    _layer: Layer
    _captured: CapturedDrafting | None

    def __init__(self, config: EagleConfig) -> None:
        self._config = config

    def open(self, resources: EngineResources) -> None:
        """Load the layer.

        Raises:
            ValueError: there is none for this model.
        """
        if resources.target is None or resources.read_heads is None:
            raise ValueError(
                "eagle needs the target model, which this engine does not provide to drafters"
            )
        tensors, facts = resources.read_heads(self._config.heads, "eagle")
        self._target = resources.target
        # Drafts of an almost full sequence have positions beyond its context.
        self._layer = layer = Layer(tensors, facts, resources.max_model_len + self._config.depth)
        self._window = layer.window
        rows, hidden = resources.max_running, self._target.hidden_size
        like = tensors["out.weight"]
        # On a device, a synchronization per draft token would be too slow: all are drafted in one
        # launch, over tensors with a row for padding and space for drafts after the window.
        is_fixed = resources.capture is not None or resources.device != "cpu"
        depth = self._config.depth
        places = self._window + depth - 1 if is_fixed else self._window
        self._features = like.new_zeros(rows + is_fixed, self._window, hidden)
        self._context = like.new_zeros(rows + is_fixed, 2 * layer.kv_heads, places, layer.head_dim)
        self._captured = None
        if is_fixed:
            self._captured = CapturedDrafting(
                layer,
                self._target,
                self._features,
                self._context,
                depth,
                self._config.width,
                resources.capture or _launched,
            )
        # By row and index: the position whose hidden state is stored, and that whose key and value
        # are computed. A hidden state is pending where they differ.
        self._held = np.full((rows, self._window), _NOTHING, np.int64)
        self._entered = np.full((rows, self._window), _NOTHING, np.int64)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def admit(self, row: int) -> None:
        """Reset this row's state for a new sequence."""
        self._held[row] = self._entered[row] = _NOTHING

    @torch.inference_mode()
    def observe(self, features: Features) -> None:
        """Store the last hidden states of each row, up to the size of the window."""
        rows, positions, hidden = features.rows, features.positions, features.hidden
        # Only the last `window` positions of each row are stored: if two had the same index, it
        # would be undefined which of them is written last.
        if len(rows) > self._window:
            last = np.full(len(self._held), _NOTHING, np.int64)
            np.maximum.at(last, rows, positions)
            near = np.flatnonzero(positions > last[rows] - self._window)
            rows, positions = rows[near], positions[near]
            hidden = hidden.index_select(0, self._to_device(near))
        places = positions % self._window
        self._held[rows, places] = positions
        self._features[self._to_device(rows), self._to_device(places)] = hidden

    @torch.inference_mode()
    def propose(self, batch: DraftBatch) -> Drafts:
        """Draft for all rows whose hidden state before the last token was observed."""
        # The hidden state before the last token, paired with that token, predicts the first draft.
        at = batch.lengths - 2
        is_known = self._held[batch.rows, at % self._window] == at
        depth = min(self._config.depth, int(batch.limits.max(initial=0)))
        most = min(depth * self._config.width, int(batch.limits.max(initial=0)))
        counts = np.where(is_known, np.minimum(batch.limits, most), 0).astype(np.int32)
        tokens = np.zeros((len(batch.rows), most), np.int32)
        parents = np.tile(np.arange(-1, most - 1, dtype=np.int32), (len(batch.rows), 1))
        known = np.flatnonzero(is_known)
        if len(known):
            if self._captured is None:
                guesses, shares = self._draft_chains(batch, known, depth)
            else:
                guesses, shares = self._draft_captured(self._captured, batch, known, depth)
            most = min(most, guesses[0].size)
            counts = np.minimum(counts, most)
            tokens[known, :most], parents[known, :most] = likeliest(guesses, shares, most)
        return Drafts(tokens, counts, parents)

    def _draft_chains(
        self, batch: DraftBatch, known: NDArray[np.int64], depth: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Draft chains for some rows, and alternatives at each depth, with their probabilities.

        Each of shape ``[n, depth, width]``; the chain continues from the first choice. Less deep
        when no chain is likely to be accepted so far, or when deeper tokens could not be among
        those that a row can use.
        """
        rows, at = batch.rows[known], batch.lengths[known] - 2
        entered = self._enter(batch, rows, at)
        # Drafts follow the window, and are discarded with this copy.
        context = self._context.index_select(0, self._to_device(rows))
        room = context.new_zeros(*context.shape[:2], depth - 1, context.shape[3])
        context = torch.cat((context, room), 2)
        is_seen = self._to_device(self._seen(rows, at, depth))
        positions = self._to_device(at)
        predicted = self._layer.predict_hidden(entered, context, is_seen[0])
        levels = [self._top_tokens(predicted)]
        expansion = DraftExpansion(batch.limits[known])
        for ahead in range(1, depth):
            expansion.add_depth(levels[-1].values.float().numpy())
            if not expansion.is_worth_extending(self._config.min_confidence):
                break
            embedded = self._target.embed(levels[-1].indices[:, 0])
            entered = self._layer.enter(predicted, embedded, positions + ahead)
            context[:, :, self._window + ahead - 1] = entered.key_value
            predicted = self._layer.predict_hidden(entered, context, is_seen[ahead])
            levels.append(self._top_tokens(predicted))
        tokens = torch.stack([one.indices for one in levels], 1)
        shares = torch.stack([one.values for one in levels], 1).float()
        return tokens.numpy(), shares.numpy()

    def _draft_captured(
        self, captured: CapturedDrafting, batch: DraftBatch, known: NDArray[np.int64], depth: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Draft to the full depth in one launch, without inspecting intermediate results."""
        rows, at = batch.rows[known], batch.lengths[known] - 2
        line, place = self._waiting(rows, at)
        # A prompt may have more pending states than fit.
        # `line` is sorted, so searchsorted finds the first pair of each row.
        nth = np.arange(len(line)) - np.searchsorted(line, line)
        position = self._held[rows[line], place]
        is_extra = nth >= captured.new - 1
        if is_extra.any():
            self._enter_some(batch, rows[line[is_extra]], place[is_extra])
            line, place, nth, position = (part[~is_extra] for part in (line, place, nth, position))
        # The last pair of each row is the one to draft from; unused ones are padding.
        line = np.append(line, np.arange(len(rows)))
        nth = np.append(nth, np.full(len(rows), captured.new - 1))
        place, position = np.append(place, at % self._window), np.append(position, at)
        pairs = HiddenTokenPairs(*np.zeros((4, len(rows), captured.new), np.int64))
        pairs.rows[:] = len(self._held)
        of = rows[line]
        pairs.rows[line, nth], pairs.places[line, nth] = of, place
        pairs.tokens[line, nth] = batch.tokens[of, position + 1]
        pairs.positions[line, nth] = position
        # Set before the masks are made: these keys are computed by the same launch, and visible to
        # it.
        self._entered[of, place] = position
        tokens, shares = captured.guess(pairs, self._seen(rows, at, self._config.depth))
        return self._truncate_unlikely(batch.limits[known], tokens[:, :depth], shares[:, :depth])

    def _truncate_unlikely(
        self, limits: NDArray[np.int64], tokens: NDArray[np.int64], shares: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Truncate drafts to the depth that step-by-step drafting would have reached."""
        expansion = DraftExpansion(limits)
        depth = 1
        while depth < tokens.shape[1]:
            expansion.add_depth(shares[:, depth - 1])
            if not expansion.is_worth_extending(self._config.min_confidence):
                break
            depth += 1
        return tokens[:, :depth], shares[:, :depth]

    def _to_device(self, array: NDArray[Any]) -> torch.Tensor:
        """Copy an array to the model's device, asynchronously."""
        sent = torch.from_numpy(np.ascontiguousarray(array))
        if self._features.device.type == "cpu":
            return sent
        return sent.pin_memory().to(self._features.device, non_blocking=True)

    def _top_tokens(self, predicted: torch.Tensor) -> torch.return_types.topk:
        """Return the most likely tokens of hidden states."""
        return torch.softmax(self._target.logits(predicted), -1).topk(self._config.width)

    def _enter(
        self, batch: DraftBatch, rows: NDArray[np.int64], at: NDArray[np.int64]
    ) -> FusedInput:
        """Process pending hidden states into keys and values; return the last pair of each row."""
        line, place = self._waiting(rows, at)
        # The last pairs come first, so that they can be sliced.
        line = np.concatenate((np.arange(len(rows)), line))
        place = np.concatenate((at % self._window, place))
        entered = self._enter_some(batch, rows[line], place)
        return FusedInput(*(part[: len(rows)] for part in entered))

    def _waiting(
        self, rows: NDArray[np.int64], at: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return rows and indices of pending hidden states before ``at``, within the window."""
        held = self._held[rows]
        # Positions that have left the window of `at` are not visible to it, so they need no keys.
        waits = (held != self._entered[rows]) & (held > (at - self._window)[:, None])
        # The pair at `at` itself is added by the callers, which draft from it.
        waits &= held < at[:, None]
        line, place = np.nonzero(waits)
        return line, place

    def _enter_some(
        self, batch: DraftBatch, row: NDArray[np.int64], place: NDArray[np.int64]
    ) -> FusedInput:
        """Process these hidden states into keys and values."""
        position = self._held[row, place]
        index = self._to_device(row), self._to_device(place)
        ids = self._to_device(batch.tokens[row, position + 1].astype(np.int64))
        embedded = self._target.embed(ids)
        entered = self._layer.enter(self._features[index], embedded, self._to_device(position))
        self._context[index[0], :, index[1]] = entered.key_value
        self._entered[row, place] = position
        return entered

    def _seen(
        self, rows: NDArray[np.int64], at: NDArray[np.int64], depth: int
    ) -> NDArray[np.bool_]:
        """Return the attention mask of each draft step, ``[depth, n, window + depth - 1]``."""
        ahead = np.arange(depth)
        entered = self._entered[rows]
        # The window moves with each draft, and its oldest position is not visible any more.
        first = (at - self._window)[:, None] + ahead[:, None, None]
        window = (entered >= 0) & (entered > first) & (entered <= at[:, None])
        # Draft step i sees the keys of the i drafts before it, which are stored behind the window.
        guesses = np.broadcast_to(
            np.arange(depth - 1) < ahead[:, None, None], (depth, len(rows), depth - 1)
        )
        return np.concatenate((window, guesses), 2)


def _launched(
    launches: Callable[[int], None], name: str, logits_per_line: int
) -> Callable[[int], None]:
    """Return launches unchanged, without capturing them."""
    return launches
