"""A small model that guesses for a larger one, on a device: tokens stay there between guesses.

Rows have pages of their own. What is new of a row is computed, then one token after the other is
guessed: each step reads the last token of its rows where the step before has written it. The host
is told all guesses at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.slots import SlotAttention
from gatewayd_engine.device.graphs import Capture, Graphs, Replay
from gatewayd_engine.device.slots import MOST_SLOTS, Lines, SlotInputs, Slots, flat_of
from gatewayd_engine.device.transfers import Outbox, upload
from gatewayd_engine.kernels.base import Kernels, SamplingColumns
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.decoder import Decoder

PAGE_SIZE = 64
"""Pages belong to one row each: their size only rounds contexts up."""
_MOST_CHUNK_SLOTS = 8192
"""Slots of a step that reads prompts."""
_NEW = 2
"""Tokens that are new of a row in most steps, at most: the last guess and the one behind it, where
all guesses were right."""


@dataclass(slots=True)
class _Rows:
    """See ``SlotRows``: each row has its pages for good."""

    padding: int
    last_tokens: torch.Tensor
    block_table: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Step:
    """A captured step, and what it reads."""

    inputs: SlotInputs
    run: Replay


class DeviceRowModel:
    """See ``GuessingModel``.

    Args:
        decoder: the model, of fused parts.
        kernels: of the device.
        max_running: rows.
        max_model_len: tokens of a row.
        capture: captures steps; None to launch kernel by kernel.
    """

    def __init__(
        self,
        decoder: Decoder,
        kernels: Kernels,
        max_running: int,
        max_model_len: int,
        capture: Capture | None,
    ) -> None:
        self.vocab_size = decoder.spec.vocab_size
        self.max_model_len = max_model_len
        self._decoder = decoder
        self._kernels = kernels
        self._device = device = decoder.device
        self._max_running = max_running
        shape, pages = decoder.spec.attention, -(-max_model_len // PAGE_SIZE)
        pool = KvPool(shape, max_running * pages, PAGE_SIZE, decoder.dtype, str(device))
        table = torch.arange(max_running * pages, dtype=torch.int32, device=device)
        table = torch.cat((table, table.new_full((pages,), pool.num_pages)))
        last_tokens = torch.zeros(max_running + 1, dtype=torch.int32, device=device)
        self._rows = _Rows(max_running, last_tokens, table.view(max_running + 1, pages))
        append = Append(shape, pool, kernels, decoder.rotary.cosines_and_sines())
        self._attention = SlotAttention(shape, pool, append, kernels, max_model_len)
        # A prompt is several lines of one row: each sees those before it.
        most = max(_MOST_CHUNK_SLOTS, _NEW * max_running)
        self._slots = Slots(
            self._rows,
            kernels,
            PAGE_SIZE,
            pool.num_pages,
            max(max_running, most // MOST_SLOTS),
            most,
        )
        self._outbox = Outbox(device)
        self._likeliest = _likeliest(max_running + 1, device)
        # Of each line the token that was guessed last, then the bits of its log-probability.
        self._guessed = torch.zeros((2, max_running), dtype=torch.int32, device=device)
        self._graphs: dict[int, Graphs[_Step]] = {}
        if capture is not None and decoder.is_capturable:
            self._capture(capture)

    # Steps

    @torch.inference_mode()
    def extend(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
    ) -> torch.Tensor:
        """See ``DraftModel``; the logits are on the device, and nothing is waited for."""
        return self._decoder.logits(self._read(rows, starts, counts, tokens))

    @torch.inference_mode()
    def guess(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
        steps: int,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """See ``GuessingModel``."""
        n, ends = len(rows), starts + counts
        made = torch.empty((steps, 2, n), dtype=torch.int32, device=self._device)
        if int(counts.max()) <= _NEW:
            own = np.arange(tokens.shape[1]) < counts[:, None]
            lines = Lines(rows, starts, counts, tokens[own].astype(np.int64))
            self._run(lines, _NEW)
        else:
            self._choose(self._read(rows, starts, counts, tokens), upload(rows, self._device))
        made[0].copy_(self._guessed[:, :n])
        if steps > 1:
            # The first of these steps goes one token on, as all do.
            ones, unknown = np.ones(n, np.int64), np.full(n, -1, np.int64)
            self._run(Lines(rows, ends - 1, ones, unknown, reach=ends + steps - 1), 1)
            made[1].copy_(self._guessed[:, :n])
            for depth in range(2, steps):
                self._again(n)
                made[depth].copy_(self._guessed[:, :n])
        (told,) = self._outbox.post([made], self._outbox.room([made])).read()
        ids, logprobs = told[:, 0].T, told[:, 1].view(np.float32).T
        return ids, np.exp(logprobs)

    def _read(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
    ) -> torch.Tensor:
        """Compute tokens of any number, kernel by kernel; the last hidden state of each row."""
        most = _MOST_CHUNK_SLOTS
        while len(long := np.flatnonzero(counts > most)):
            # Longer than a step: their beginnings first, one row at a time.
            for i in long.tolist():
                one = slice(i, i + 1)
                self._read_some(rows[one], starts[one], np.full(1, most), tokens[one, :most])
            tokens = tokens.copy()
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
            last.append(self._read_some(rows[some], starts[some], counts[some], tokens[some]))
            begin = end
        return torch.cat(last)

    def _read_some(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
    ) -> torch.Tensor:
        parts = -(-counts // MOST_SLOTS)
        line = np.repeat(np.arange(len(rows)), parts)
        part = np.arange(len(line)) - np.repeat(np.cumsum(parts) - parts, parts)
        done = part * MOST_SLOTS
        size = np.minimum(counts[line] - done, MOST_SLOTS)
        own = np.arange(tokens.shape[1]) < counts[:, None]
        lines = Lines(rows[line], starts[line] + done, size, tokens[own].astype(np.int64))
        inputs = self._slots.inputs(len(line), MOST_SLOTS)
        self._slots.upload(lines, len(line), MOST_SLOTS)
        self._slots.fill(inputs)
        out = self._attention.room(len(line) * MOST_SLOTS)
        scratch = self._attention.scratch([(len(line), MOST_SLOTS)])
        hidden = self._decoder.hidden(
            inputs.step.ids, inputs.step.positions, self._attention.attend(inputs, out, scratch)
        )
        last = flat_of(size, MOST_SLOTS)[np.cumsum(counts) - 1]
        return hidden.index_select(0, upload(last, self._device))

    def _choose(self, hidden: torch.Tensor, rows: torch.Tensor) -> None:
        """The likeliest token behind each of these states, and its log-probability."""
        logits, n = self._decoder.raw_logits(hidden), len(rows)
        index = rows.to(torch.int32)
        ids, _ = self._kernels.sample(logits, index, index, self._likeliest)
        logprobs, *_ = self._kernels.logprobs(logits, ids, 0)
        self._guessed[0, :n] = ids
        self._guessed[1, :n] = logprobs.view(torch.int32)
        self._rows.last_tokens.index_copy_(0, rows.long(), ids)

    # Captured steps

    def _capture(self, capture: Capture) -> None:
        """Capture steps of few new tokens, and of one, for powers of two of lines."""
        sizes = [1 << bit for bit in range(self._max_running.bit_length())]
        sizes = sorted({*(size for size in sizes if size < self._max_running), self._max_running})
        for width in (_NEW, 1):
            made = partial(self._captured, capture, width)
            what = f"a draft model's steps of %s sequences, {width} tokens each"
            self._graphs[width] = Graphs(sizes, made, _untold, what)

    def _captured(self, capture: Capture, width: int, lines: int) -> _Step:
        self._slots.clear(lines, width)
        step = self._made(lines, width)
        return _Step(step.inputs, capture.whole(step.run))

    def _made(self, lines: int, width: int) -> _Step:
        """A step over the tensors of its size, not captured."""
        inputs = self._slots.inputs(lines, width)
        out = self._attention.room(lines * width)
        attend = self._attention.attend(inputs, out, self._attention.scratch([(lines, width)]))
        first = torch.arange(lines, device=self._device) * width - 1

        def run() -> None:
            if width == 1:
                # One token further than the step before, or than what was uploaded.
                inputs.starts.add_(1)
                inputs.step.last_page_len.add_(1)
            self._slots.fill(inputs)
            hidden = self._decoder.hidden(inputs.step.ids, inputs.step.positions, attend)
            if width > 1:
                hidden = hidden.index_select(0, first + inputs.counts)
            self._choose(hidden, inputs.rows)

        return _Step(inputs, run)

    def _run(self, lines: Lines, width: int) -> None:
        """Upload lines and guess the token behind each."""
        n = len(lines.rows)
        graphs = self._graphs.get(width)
        size = graphs.size_for(n) if graphs is not None else None
        if graphs is None or size is None:
            size = n
            step = self._made(n, width)
        else:
            step = graphs[size]
        self._slots.upload(lines, size, width)
        self._last = step
        step.run()

    def _again(self, num_lines: int) -> None:
        """Guess one token further for the lines of the last step."""
        self._last.run()


def _likeliest(rows: int, device: torch.device) -> SamplingColumns:
    """Rows that all take the likeliest token."""
    nothing, whole = torch.zeros(rows, device=device), torch.ones(rows, device=device)
    none = torch.zeros(rows, dtype=torch.int32, device=device)
    return SamplingColumns(nothing, none, whole, nothing, none.long())


def _untold(part: float) -> None:
    """Small models are captured in a moment."""
