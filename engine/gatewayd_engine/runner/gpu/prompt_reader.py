"""Prefill of a draft model on a device: any number of tokens, without graphs."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.draft_slots import SlotAttention
from gatewayd_engine.kernels.transfers import upload
from gatewayd_engine.model.servable import ServableModel
from gatewayd_engine.runner.gpu.draft_slots import (
    MOST_SLOTS,
    DraftLinesInput,
    DraftSlotInputs,
    flat_of,
)

MOST_CHUNK_SLOTS = 8192
"""Most slots of a prefill step."""


class PromptReader:
    """Prefill of rows: a prompt is split into several entries of one row, attended causally.

    Args:
        decoder: decoder of the draft model.
        slots: inputs of at least ``MOST_CHUNK_SLOTS`` slots.
        attention: attention over the rows' pages.
    """

    def __init__(
        self, decoder: ServableModel, slots: DraftSlotInputs, attention: SlotAttention
    ) -> None:
        self._decoder = decoder
        self._slots = slots
        self._attention = attention

    def read(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
    ) -> torch.Tensor:
        """Compute tokens; see ``DraftModel.extend``.

        Returns:
            The last hidden state of each row, shape ``[n, hidden]``.
        """
        most = MOST_CHUNK_SLOTS
        while len(long := np.flatnonzero(counts > most)):
            # Prompts longer than a step: their beginnings first, one row at a time.
            for i in long.tolist():
                one = slice(i, i + 1)
                self._step(rows[one], starts[one], np.full(1, most), tokens[one, :most])
            tokens = tokens.copy()
            # Shift out the computed beginning; what is left behind the new count is ignored.
            tokens[long, :-most] = tokens[long, most:]
            starts, counts = starts.copy(), counts.copy()
            starts[long] += most
            counts[long] -= most
        last, begin = [], 0
        parts = -(-counts // MOST_SLOTS)
        while begin < len(rows):
            # As many rows at a time as fit a step.
            upto = np.cumsum(parts[begin:])
            end = begin + int(np.searchsorted(upto, most // MOST_SLOTS, "right"))
            some = slice(begin, end)
            last.append(self._step(rows[some], starts[some], counts[some], tokens[some]))
            begin = end
        return torch.cat(last)

    def compile(self, padding: int) -> torch.Tensor:
        """Launch each kernel of prefill steps once, to compile it, over the padding row's pages.

        Args:
            padding: row of padding sequences.

        Returns:
            A hidden state, shape ``[1, hidden]``.
        """
        hidden = []
        for lines in fewest_lines(self._attention, MOST_SLOTS, MOST_CHUNK_SLOTS // MOST_SLOTS):
            one = np.ones(lines, np.int64)
            tokens = np.zeros((lines, 1), np.int32)
            hidden.append(self._step(np.full(lines, padding), one - 1, one, tokens))
        return hidden[-1][:1]

    def _step(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
    ) -> torch.Tensor:
        parts = -(-counts // MOST_SLOTS)
        # Entry j computes ``size[j]`` tokens of ``rows[line[j]]``, from its token ``done[j]`` on.
        # In each layer the keys of all entries are written before any attends, so an entry sees
        # those before it.
        line = np.repeat(np.arange(len(rows)), parts)
        part = np.arange(len(line)) - np.repeat(np.cumsum(parts) - parts, parts)
        done = part * MOST_SLOTS
        size = np.minimum(counts[line] - done, MOST_SLOTS)
        own = np.arange(tokens.shape[1]) < counts[:, None]
        lines = DraftLinesInput(rows[line], starts[line] + done, size, tokens[own].astype(np.int64))
        inputs = self._slots.inputs(len(line), MOST_SLOTS)
        self._slots.upload(lines, len(line), MOST_SLOTS)
        self._slots.fill(inputs)
        out = self._attention.allocate_output(len(line) * MOST_SLOTS)
        scratch = self._attention.scratch([(len(line), MOST_SLOTS)])
        hidden = self._decoder.hidden(
            inputs.step.ids, inputs.step.positions, self._attention.attend(inputs, out, scratch)
        )
        last = flat_of(size, MOST_SLOTS)[np.cumsum(counts) - 1]
        return hidden.index_select(0, upload(last, self._decoder.device))


def fewest_lines(attention: SlotAttention, width: int, most: int) -> list[int]:
    """Return the smallest batch size, up to ``most``, for each number of KV splits.

    Attention is compiled for each number of splits, and for each width.

    Args:
        attention: attention of the draft model.
        width: slots of each sequence.
        most: most sequences of a step.
    """
    fewest: dict[int, int] = {}
    for lines in range(1, most + 1):
        fewest.setdefault(attention.splits(lines, width), lines)
    return sorted(fewest.values())
