"""Steps with drafts on a device: computed, verified and accepted there, and told in one letter.

All slots of a step, each line's last token and its drafts, are sampled in one launch: what a device
draws follows from row and position, so the token behind each slot is the one that would be drawn
without drafts. A kernel then finds the path that the model has chosen. The host waits once, for
the letter that says which.

Where all lines decode, the layers are captured for lines padded to a few widths. What samples and
accepts is launched behind them, while they compute: the host has nothing else to do, for the next
drafts follow from the tokens of this step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.draft_slots import MixedAttend, SlotAttention
from gatewayd_engine.attention.gpu_api import DeviceAttention
from gatewayd_engine.attention.step_inputs import SlotInputs
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.runner.gpu.cuda_graphs import Capture, Graphs, Replay
from gatewayd_engine.runner.gpu.device_rows import DeviceRows
from gatewayd_engine.runner.gpu.draft_slots import DraftLinesInput, DraftSlotInputs, flat_of
from gatewayd_engine.runner.gpu.input_gather import Gathering
from gatewayd_engine.runner.gpu.step_outcome import StepRequests
from gatewayd_engine.runner.gpu.verifier import Computed, Verifier
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


def drafted_bytes(decoder: Decoder, max_lines: int) -> int:
    """What the tensors take that stay for them: logits, hidden states, answers of attention."""
    spec = decoder.spec
    states = spec.hidden_size + spec.num_heads * spec.head_dim
    each = spec.vocab_size * decoder.logits_dtype.itemsize + states * decoder.dtype.itemsize
    return most_captured(max_lines) * each


@dataclass(frozen=True, slots=True)
class _CapturedLines:
    """The layers of one size and width."""

    inputs: SlotInputs
    forward: Replay


class DraftedSteps:
    """Computes steps with drafts, and steps whose hidden states a drafter wants to see.

    Args:
        decoder: the model.
        attention: of what has no drafts.
        slots: attention of what has.
        state: the rows on the device.
        gathering: makes the inputs of what has no drafts.
        verifier: says what the model thinks of the drafts.
        hidden: runs the layers of a batch without drafts.
        max_lines: most sequences of a step.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: DeviceAttention,
        slots: SlotAttention,
        state: DeviceRows,
        gathering: Gathering,
        verifier: Verifier,
        hidden: Callable[[StepBatch], torch.Tensor],
        max_lines: int,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._slots = slots
        self._state = state
        self._gathering = gathering
        self._verifier = verifier
        self._hidden = hidden
        self._max_lines = max_lines
        self._made: DraftSlotInputs | None = None
        self._graphs: dict[int, Graphs[_CapturedLines]] = {}

    @property
    def _inputs(self) -> DraftSlotInputs:
        """Made when there are drafts for the first time."""
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

    # Captured

    def capture(self, capture: Capture, progress: Callable[[float], None]) -> None:
        """Capture the layers of lines with drafts; others are launched kernel by kernel."""
        spec, device = self._decoder.spec, self._decoder.device
        # The widest, which are the largest, first: others use their memory again.
        widths = captured_widths(self._max_lines)
        most = most_captured(self._max_lines)
        self._logits = torch.empty(
            (most, spec.vocab_size), dtype=self._decoder.logits_dtype, device=device
        )
        self._states = torch.zeros(
            (most, spec.hidden_size), dtype=self._decoder.dtype, device=device
        )
        self._attended = self._slots.room(most)
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
        """Lines and width of the smallest capture that is enough; None if there is none."""
        for width in sorted(self._graphs):
            if width >= num_slots and (size := self._graphs[width].size_for(num_lines)):
                return size, width
        return None

    # A step

    def launch(
        self, batch: StepBatch, lines: NDArray[np.int64], asked: StepRequests, *, shows_hidden: bool
    ) -> Launched:
        """Queue a batch; after an exception the same may be launched again.

        Args:
            batch: with drafts or without.
            lines: those that get tokens, shape ``[n]``.
            asked: what is wanted beside tokens.
            shows_hidden: whether hidden states are.
        """
        is_whole = batch.num_decode == len(batch) == len(lines) and not asked.needs_hidden
        size = self._captured_for(len(batch), int(batch.counts.max())) if is_whole else None
        computed = self._compute(batch) if size is None else self._replay(batch, *size)
        return self._verifier.launch(batch, lines, asked, computed, shows_hidden=shows_hidden)

    def _replay(self, batch: StepBatch, lines: int, width: int) -> Computed:
        arrivals = self._slots.pool.arrivals
        if arrivals.pending:
            # A graph waits for no layer: all of them must be there before it starts.
            arrivals.wait()
        self._inputs.upload(DraftLinesInput.of(batch), lines, width)
        self._graphs[width][lines].forward()
        count = len(batch) * width
        return Computed(
            flat_of(batch.counts, width),
            self._states[:count],
            self._logits[:count],
            width,
            is_kept=False,
        )

    def _compute(self, batch: StepBatch) -> Computed:
        """Kernel by kernel: lines with drafts padded, behind them all others as without drafts."""
        drafts = batch.drafts
        if drafts is None or not drafts.counts.any():
            hidden = self._hidden(batch)
            return Computed(np.arange(len(batch.ids)), hidden, None, 0, is_kept=False)
        has = drafts.counts > 0
        with_drafts = np.flatnonzero(has)
        guessed, rest = batch.of(with_drafts), batch.of(np.flatnonzero(~has))
        width = padded(int(guessed.counts.max()))
        self._inputs.upload(DraftLinesInput.of(guessed), len(guessed), width)
        inputs = self._inputs.inputs(len(guessed), width)
        self._inputs.fill(inputs)
        num_slots = len(inputs.step.ids)
        out = self._slots.room(num_slots + len(rest.ids))
        scratch = self._slots.scratch([(len(guessed), width)])
        attend = self._slots.attend(inputs, out[:num_slots], scratch)
        ids, positions = inputs.step.ids, inputs.step.positions
        at = np.zeros(len(batch.ids), np.int64)
        is_guessed = np.repeat(has, batch.counts)
        at[is_guessed] = flat_of(guessed.counts, width)
        if len(rest):
            gathering = self._gathering
            others = gathering.inputs(gathering.upload(rest, len(rest)), len(rest.ids))
            gathering.fill(others, int(rest.counts.max()))
            beside = self._attention.eager(others, out[num_slots:])
            attend = MixedAttend(attend, beside, num_slots, out)
            ids = torch.cat((ids, others.ids))
            positions = torch.cat((positions, others.positions))
            at[~is_guessed] = num_slots + np.arange(len(rest.ids))
        hidden = self._decoder.hidden(ids, positions, attend)
        return Computed(at, hidden, None, 0, is_kept=True)
