"""Draft model on a device: drafts autoregressively without copying tokens to the host in between.

Each row has a fixed set of KV pages. The new tokens of a row are computed, then draft tokens are
generated one by one: each step reads its rows' last tokens where the previous step wrote them. All
draft tokens are copied to the host at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.draft_slots import SlotAttention
from gatewayd_engine.attention.step_inputs import SlotInputs
from gatewayd_engine.kernels.base import Kernels, SamplingColumns
from gatewayd_engine.kernels.transfers import HostCopier, upload
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.runner.gpu.cuda_graphs import Capture, Graphs, Replay
from gatewayd_engine.runner.gpu.draft_slots import MOST_SLOTS, DraftLinesInput, DraftSlotInputs
from gatewayd_engine.runner.gpu.prompt_reader import MOST_CHUNK_SLOTS, PromptReader, fewest_lines

PAGE_SIZE = 64
"""Tokens per page. Pages belong to a fixed row, so their size only rounds contexts up."""
_NEW = 2
"""Most new tokens of a row in typical steps: where all drafts were accepted, the last draft and the
model's own token after it."""
_WIDTHS = (_NEW, 1)
"""Slots of a sequence in captured steps: in the first step of a draft, and in later ones."""


def captured_lines(max_running: int) -> list[int]:
    """Return the captured batch sizes: powers of two, and the largest."""
    powers = {1 << bit for bit in range(max_running.bit_length())}
    return sorted({size for size in powers if size < max_running} | {max_running})


def num_captured_guesses(max_running: int) -> int:
    """Return the number of CUDA graphs of a draft model."""
    return len(_WIDTHS) * len(captured_lines(max_running))


@dataclass(slots=True)
class _Rows:
    """``SlotRows`` with a fixed set of pages per row."""

    padding: int
    last_tokens: torch.Tensor
    block_table: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Step:
    """A step, captured or not, and its inputs."""

    inputs: SlotInputs
    run: Replay


class DeviceRowModel:
    """Device implementation of ``GuessingModel``; launches kernel by kernel until it is captured.

    Args:
        decoder: decoder of the draft model, with fused parts.
        kernels: kernels of the device.
        max_running: number of rows.
        max_model_len: most tokens of a row.
    """

    def __init__(
        self,
        decoder: Decoder,
        kernels: Kernels,
        max_running: int,
        max_model_len: int,
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
        # The padding row owns no pages: each of its entries is the scratch page.
        table = torch.cat((table, table.new_full((pages,), pool.num_pages)))
        last_tokens = torch.zeros(max_running + 1, dtype=torch.int32, device=device)
        self._rows = _Rows(max_running, last_tokens, table.view(max_running + 1, pages))
        append = Append(shape, pool, kernels, decoder.rotation_tables())
        self._attention = SlotAttention(shape, pool, append, kernels, max_model_len, decoder.sinks)
        most = max(MOST_CHUNK_SLOTS, _NEW * max_running)
        # A prefill step has an entry for each ``MOST_SLOTS`` tokens, possibly more than there are
        # rows.
        self._slots = DraftSlotInputs(
            self._rows,
            kernels,
            PAGE_SIZE,
            pool.num_pages,
            max(max_running, most // MOST_SLOTS),
            most,
        )
        self._reader = PromptReader(decoder, self._slots, self._attention)
        self._copier = HostCopier(device)
        self._likeliest = _likeliest(max_running + 1, device)
        # Last draft token of each sequence, then the bits of its log-probability.
        self._guessed = torch.zeros((2, max_running), dtype=torch.int32, device=device)
        self._graphs: dict[int, Graphs[_Step]] = {}

    # Steps

    @torch.inference_mode()
    def extend(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
    ) -> torch.Tensor:
        """See ``DraftModel``; the logits are on the device, without synchronisation."""
        return self._decoder.logits(self._reader.read(rows, starts, counts, tokens))

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
            lines = DraftLinesInput(rows, starts, counts, tokens[own].astype(np.int64))
            self._run(lines, _NEW)
        else:
            self._choose(
                self._reader.read(rows, starts, counts, tokens), upload(rows, self._device)
            )
        # The next step overwrites ``_guessed``.
        made[0].copy_(self._guessed[:, :n])
        if steps > 1:
            # Starts one token early, as every step advances by one token first.
            ones, unknown = np.ones(n, np.int64), np.full(n, -1, np.int64)
            # ``reach`` lists the pages of all remaining steps in this one upload.
            lines = DraftLinesInput(rows, ends - 1, ones, unknown, reach=ends + steps - 1)
            step = self._run(lines, 1)
            made[1].copy_(self._guessed[:, :n])
            # Positions and last tokens advance on the device: a step is one graph launch.
            for depth in range(2, steps):
                step.run()
                made[depth].copy_(self._guessed[:, :n])
        # The only synchronization with the device.
        (drafted,) = self._copier.copy([made], self._copier.allocate([made])).read()
        ids, logprobs = drafted[:, 0].T, drafted[:, 1].view(np.float32).T
        return ids, np.exp(logprobs)

    def _choose(self, hidden: torch.Tensor, rows: torch.Tensor) -> None:
        """Compute the likeliest token after each hidden state, and its log-probability."""
        logits, n = self._decoder.raw_logits(hidden), len(rows)
        index = rows.to(torch.int32)
        # Greedy sampling does not depend on the position: any index will do.
        ids, _ = self._kernels.sample(logits, index, index, self._likeliest)
        logprobs, *_ = self._kernels.logprobs(logits, ids, 0)
        self._guessed[0, :n] = ids
        self._guessed[1, :n] = logprobs.view(torch.int32)
        self._rows.last_tokens.index_copy_(0, rows.long(), ids)

    # Warm-up

    @torch.inference_mode()
    def compile(self) -> None:
        """See ``DrafterModel``; computes over the pages of the padding row."""
        padding = self._rows.padding
        hidden = self._reader.compile(padding)
        self._choose(hidden, torch.full((1,), padding, device=self._device))
        for width in _WIDTHS:
            for lines in fewest_lines(self._attention, width, self._max_running):
                self._slots.clear(lines, width)
                self._made(lines, width).run()

    @torch.inference_mode()
    def capture(self, capture: Capture, progress: Callable[[float], None]) -> None:
        """See ``DrafterModel``; captures steps of few new tokens, and of one."""
        if not self._decoder.is_capturable:
            return
        for done, width in enumerate(_WIDTHS):
            self._graphs[width] = Graphs(
                captured_lines(self._max_running),
                partial(self._captured, capture, width),
                lambda part, done=done: progress((done + part) / len(_WIDTHS)),  # type: ignore[misc]
                f"a draft model's steps of %s sequences, {width} tokens each",
            )

    def _captured(self, capture: Capture, width: int, lines: int) -> _Step:
        # Captures begin with a run of the launches: padding writes to the scratch page only.
        self._slots.clear(lines, width)
        step = self._made(lines, width)
        return _Step(step.inputs, capture.whole(step.run))

    def _made(self, lines: int, width: int) -> _Step:
        """Return an uncaptured step over the input tensors of its size."""
        inputs = self._slots.inputs(lines, width)
        out = self._attention.allocate_output(lines * width)
        attend = self._attention.attend(inputs, out, self._attention.scratch([(lines, width)]))
        # Plus a sequence's count, the index of its last token's slot.
        first = torch.arange(lines, device=self._device) * width - 1

        def run() -> None:
            if width == 1:
                # One token after the previous step, or after the uploaded position.
                inputs.starts.add_(1)
                inputs.step.last_page_len.add_(1)
            self._slots.fill(inputs)
            hidden = self._decoder.hidden(inputs.step.ids, inputs.step.positions, attend)
            if width > 1:
                hidden = hidden.index_select(0, first + inputs.counts)
            self._choose(hidden, inputs.rows)

        return _Step(inputs, run)

    def _run(self, lines: DraftLinesInput, width: int) -> _Step:
        """Upload sequences and draft the next token of each; return the step that was run."""
        n = len(lines.rows)
        graphs = self._graphs.get(width)
        size = graphs.size_for(n) if graphs is not None else None
        if graphs is None or size is None:
            size = n
            # Not captured, or larger than all captures: the same launches, without padding.
            step = self._made(n, width)
        else:
            step = graphs[size]
        self._slots.upload(lines, size, width)
        step.run()
        return step


def _likeliest(rows: int, device: torch.device) -> SamplingColumns:
    """Return sampling parameters of rows that all sample greedily."""
    nothing, whole = torch.zeros(rows, device=device), torch.ones(rows, device=device)
    none = torch.zeros(rows, dtype=torch.int32, device=device)
    return SamplingColumns(nothing, none, whole, nothing, none.long())
