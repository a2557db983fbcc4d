"""Speculative decoding steps on a device: computed, verified and accepted there.

All slots of a step, each sequence's last token and its drafts, are sampled in one launch: sampling
on a device depends on row and position only, so the token after each slot is the one that would be
sampled without drafts. A kernel then finds the accepted path. The host waits once, for the copy of
the result.

Where all sequences decode, the layers are captured for sequences padded to a few widths. Sampling
and acceptance are launched after them, while they compute: the host has no other work meanwhile, as
the next drafts depend on the tokens of this step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.draft_slots import MixedAttend, SlotAttention
from gatewayd_engine.attention.gpu_api import DeviceAttention
from gatewayd_engine.attention.step_inputs import SlotInputs
from gatewayd_engine.model.servable import ServableModel
from gatewayd_engine.runner.gpu.cuda_graphs import Capture, Graphs, Replay
from gatewayd_engine.runner.gpu.device_rows import DeviceRows
from gatewayd_engine.runner.gpu.draft_slots import DraftLinesInput, DraftSlotInputs, flat_of
from gatewayd_engine.runner.gpu.input_gather import InputBuffers
from gatewayd_engine.runner.gpu.step_outcome import StepRequests
from gatewayd_engine.runner.gpu.verifier import ForwardOutput, Verifier
from gatewayd_engine.runner.gpu.widths import (
    captured_sizes,
    captured_widths,
    most_captured,
    most_drafts,
    most_slots,
    padded,
)
from gatewayd_engine.state.in_flight import Launched
from gatewayd_engine.state.step_batch import StepBatch


def drafted_bytes(decoder: ServableModel, max_lines: int) -> int:
    """Return the memory of persistent tensors: logits, hidden states and attention outputs."""
    spec = decoder.spec
    states = spec.hidden_size + spec.num_heads * spec.head_dim
    each = spec.vocab_size * decoder.logits_dtype.itemsize + states * decoder.dtype.itemsize
    return most_captured(max_lines) * each


@dataclass(frozen=True, slots=True)
class _CapturedLines:
    """Captured layers of one batch size and width."""

    inputs: SlotInputs
    forward: Replay


@dataclass(eq=False, repr=False)
class DraftedSteps:
    """Executor of steps with drafts, and of steps whose hidden states a drafter needs.

    Args:
        decoder: decoder of the model.
        attention: attention of sequences without drafts.
        slots: attention of sequences with drafts.
        state: batch rows on the device.
        gathering: builds the inputs of sequences without drafts.
        verifier: samples all slots and accepts drafts.
        hidden: runs the layers of a batch without drafts.
        max_lines: most sequences of a step.
    """

    _decoder: ServableModel
    _attention: DeviceAttention
    _slots: SlotAttention
    _state: DeviceRows
    _input_buffers: InputBuffers
    _verifier: Verifier
    _hidden: Callable[[StepBatch], torch.Tensor]
    _max_lines: int
    _made: DraftSlotInputs | None = None
    _graphs: dict[int, Graphs[_CapturedLines]] = field(default_factory=dict)

    @property
    def _inputs(self) -> DraftSlotInputs:
        """Input tensors, allocated when there are drafts for the first time."""
        if self._made is None:
            pool = self._slots.pool
            self._made = DraftSlotInputs(
                self._state,
                self._slots.kernels,
                pool.page_size,
                pool.num_pages,
                self._max_lines,
                most_slots(self._max_lines),
            )
        return self._made

    def most_drafts(self, num_lines: int) -> int:
        """See ``StepRunner``."""
        return most_drafts(num_lines, self._max_lines)

    # Captured steps

    def capture(self, capture: Capture, progress: Callable[[float], None]) -> None:
        """Capture the layers of steps with drafts; others are launched kernel by kernel."""
        spec, device = self._decoder.spec, self._decoder.device
        # The widest first, which are the largest: others reuse their memory.
        widths = captured_widths(self._max_lines)
        most = most_captured(self._max_lines)
        # Outside of the captures' memory, because verification reads them after the replay. Shared
        # by all captures, as one step is computed at a time.
        self._logits = torch.empty(
            (most, spec.vocab_size), dtype=self._decoder.logits_dtype, device=device
        )
        self._states = torch.zeros(
            (most, spec.hidden_size), dtype=self._decoder.dtype, device=device
        )
        self._attended = self._slots.allocate_output(most)
        self._scratch = self._slots.scratch(
            (lines, width) for width in widths for lines in captured_sizes(width, self._max_lines)
        )
        for done, width in enumerate(widths):
            self._graphs[width] = Graphs(
                captured_sizes(width, self._max_lines),
                partial(self._captured, capture, width),
                lambda part, done=done: progress((done + part) / len(widths)),  # type: ignore[misc]
                f"steps of %s sequences with up to {width - 1} drafts",
            )

    def _captured(self, capture: Capture, width: int, lines: int) -> _CapturedLines:
        slots, count = self._inputs, lines * width
        # Captures begin with a run of the launches: padding writes to the scratch page only.
        slots.clear(lines, width)
        inputs = slots.inputs(lines, width)
        attend = self._slots.attend(inputs, self._attended[:count], self._scratch)

        def forward() -> None:
            slots.fill(inputs)
            hidden = self._decoder.hidden(inputs.step.ids, inputs.step.positions, attend)
            self._states[:count].copy_(hidden)
            self._decoder.raw_logits(hidden, out=self._logits[:count])

        return _CapturedLines(inputs, capture.whole(forward))

    def _captured_for(self, num_lines: int, num_slots: int) -> tuple[int, int] | None:
        """Return the batch size and width of the smallest sufficient capture; None if none is."""
        for width in sorted(self._graphs):
            if width >= num_slots and (size := self._graphs[width].size_for(num_lines)):
                return size, width
        return None

    # Execution

    def launch(
        self, batch: StepBatch, lines: NDArray[np.int64], asked: StepRequests, *, shows_hidden: bool
    ) -> Launched:
        """Launch a batch; after an exception the same batch may be launched again.

        Args:
            batch: batch with or without drafts.
            lines: sequences that get tokens, shape ``[n]``.
            asked: outputs requested in addition to tokens.
            shows_hidden: whether hidden states are returned.
        """
        # Captures have no prefill chunks, and prompts need hidden states at unpadded indices.
        is_whole = batch.num_decode == len(batch) == len(lines) and not asked.needs_hidden
        size = self._captured_for(len(batch), int(batch.counts.max())) if is_whole else None
        computed = self._compute(batch) if size is None else self._replay(batch, *size)
        return self._verifier.launch(batch, lines, asked, computed, shows_hidden=shows_hidden)

    def _replay(self, batch: StepBatch, lines: int, width: int) -> ForwardOutput:
        transfers = self._slots.pool.transfers
        if transfers.pending:
            # A graph cannot wait layer by layer: all loads must be complete before it starts.
            transfers.wait()
        self._inputs.upload(DraftLinesInput.of(batch), lines, width)
        self._graphs[width][lines].forward()
        count = len(batch) * width
        return ForwardOutput(
            flat_of(batch.counts, width),
            self._states[:count],
            self._logits[:count],
            width,
            is_kept=False,
        )

    def _compute(self, batch: StepBatch) -> ForwardOutput:
        """Run uncaptured layers: sequences with drafts, padded, then all others without padding."""
        drafts = batch.drafts
        if drafts is None or not drafts.counts.any():
            # Perhaps a persistent tensor of the piecewise graphs, which the next step overwrites.
            hidden = self._hidden(batch)
            return ForwardOutput(np.arange(len(batch.ids)), hidden, None, 0, is_kept=False)
        # Sequences with drafts: padded slots, first among the tokens of the step.
        has = drafts.counts > 0
        with_drafts = np.flatnonzero(has)
        guessed, rest = batch.of(with_drafts), batch.of(np.flatnonzero(~has))
        width = padded(int(guessed.counts.max()))
        self._inputs.upload(DraftLinesInput.of(guessed), len(guessed), width)
        inputs = self._inputs.inputs(len(guessed), width)
        self._inputs.fill(inputs)
        num_slots = len(inputs.step.ids)
        out = self._slots.allocate_output(num_slots + len(rest.ids))
        scratch = self._slots.scratch([(len(guessed), width)])
        attend = self._slots.attend(inputs, out[:num_slots], scratch)
        ids, positions = inputs.step.ids, inputs.step.positions
        # Index in ``hidden`` of each token, in the order of the batch.
        at = np.zeros(len(batch.ids), np.int64)
        is_guessed = np.repeat(has, batch.counts)
        at[is_guessed] = flat_of(guessed.counts, width)
        # All other sequences: unpadded, after the slots.
        if len(rest):
            gathering = self._input_buffers
            others = gathering.inputs(gathering.upload(rest, len(rest)), len(rest.ids))
            gathering.fill(others, int(rest.counts.max()))
            beside = self._attention.eager(others, out[num_slots:])
            attend = MixedAttend(attend, beside, num_slots, out)
            ids = torch.cat((ids, others.ids))
            positions = torch.cat((positions, others.positions))
            at[~is_guessed] = num_slots + np.arange(len(rest.ids))
        hidden = self._decoder.hidden(ids, positions, attend)
        return ForwardOutput(at, hidden, None, 0, is_kept=True)
