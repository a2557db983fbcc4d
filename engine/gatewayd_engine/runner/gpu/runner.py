"""GPU runner: full CUDA graphs for decode batches, piecewise ones for batches with prompts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.draft_slots import SlotAttention
from gatewayd_engine.attention.gpu_api import CapturedAttention, CapturingAttention, DeviceAttention
from gatewayd_engine.attention.shared_prefix import shared_pages
from gatewayd_engine.attention.step_inputs import StepInputs
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.transfers import HostCopier, upload
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.servable import ServableModel
from gatewayd_engine.runner.gpu.cuda_graphs import Capture, CapturedStep, Graphs, LaunchEach, Replay
from gatewayd_engine.runner.gpu.device_rows import DeviceRows
from gatewayd_engine.runner.gpu.draft_steps import DraftedSteps
from gatewayd_engine.runner.gpu.input_gather import InputBuffers
from gatewayd_engine.runner.gpu.piecewise_graphs import PiecewiseGraphs
from gatewayd_engine.runner.gpu.step_outcome import StepOutcome, StepRequests
from gatewayd_engine.runner.gpu.verifier import Verifier
from gatewayd_engine.runner.pooling import pool
from gatewayd_engine.sampling.guides.processors import GuidedProcessors
from gatewayd_engine.state.in_flight import Launched
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch


class DeviceRunner:
    """Asynchronous runner of model, attention and sampler on a device.

    ``launch`` returns when everything is queued; sampled tokens stay on the device for the next
    step, and are copied to the host concurrently.

    Args:
        decoder: decoder with fused parts.
        attention: attention over the pool.
        pool: KV pool; its last page is the scratch page of padding sequences.
        rows: batch rows, which record their changes for the device.
        processors: logits processors and guides of the rows.
        kernels: kernels of the device.
        max_batch_tokens: most tokens of a step.
        append: applies rotary embedding and appends keys and values to the pool.

    Attributes:
        device: device of the runner.
        max_lines: most sequences of a step.
        max_tokens: most tokens of a step.
        max_len: most tokens of a sequence.
        logits: logits of the last captured step, shape ``[max_lines, vocab]``.
        sampling: sampling parameters of the rows.
    """

    overlaps = True
    verifies_all = False
    reads_tables = False
    shows_hidden = False

    def __init__(
        self,
        decoder: ServableModel,
        attention: DeviceAttention,
        pool: KvPool,
        rows: RunningBatch,
        processors: GuidedProcessors,
        kernels: Kernels,
        max_batch_tokens: int,
        append: Append,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._rows = rows
        self._processors = processors
        self._kernels = kernels
        self._page_size = pool.page_size
        self._kv_bits = 8 * pool.data.itemsize
        self.device = decoder.device
        self.max_lines = max_lines = len(rows.seed)
        # Decode steps are captured for up to ``max_lines`` sequences, whatever the token budget.
        self.max_tokens = max(max_batch_tokens, max_lines)
        self.max_len = rows.tokens.shape[1]
        self._state = DeviceRows(rows, pool.num_pages, self.device)
        self.sampling = self._state.sampling
        self._input_buffers = InputBuffers(
            self._state, kernels, pool.page_size, max_lines, self.max_tokens
        )
        self._copier = HostCopier(self.device)
        # Outside of the captures' memory: processors and the sampler read them after a replay.
        self.logits = torch.empty(
            (max_lines, decoder.spec.vocab_size), dtype=decoder.logits_dtype, device=self.device
        )
        # Token of each sequence, then the bits of its largest logit.
        self._chosen = torch.zeros((2, max_lines), dtype=torch.int32, device=self.device)
        verifier = Verifier(
            decoder, pool, rows, processors, self._state, kernels, self._copier, self.launch
        )
        self._drafted = DraftedSteps(
            decoder,
            attention,
            SlotAttention(
                decoder.spec.attention, pool, append, kernels, self.max_len, decoder.sinks
            ),
            self._state,
            self._input_buffers,
            verifier,
            self._hidden,
            max_lines,
        )
        self._graphs: Graphs[list[CapturedStep]] | None = None
        self._pieces: PiecewiseGraphs | None = None

    @torch.inference_mode()
    def capture(self, at: list[int], capture: Capture, progress: Callable[[float], None]) -> None:
        """Capture decode steps of these batch sizes."""
        if (attention := self._capturing) is not None:
            self._graphs = Graphs(
                at,
                lambda size: self._steps(attention, size, capture),
                progress,
                "decode steps of %s sequences",
            )

    @torch.inference_mode()
    def capture_pieces(
        self, at: list[int], capture: Capture, progress: Callable[[float], None]
    ) -> None:
        """Capture steps with prompts piecewise, for these token counts."""
        if at and self._capturing is not None:
            inputs = self._input_buffers.inputs(self._input_buffers.scratch(1), max(at))
            self._pieces = PiecewiseGraphs(self._decoder, inputs, at, capture, progress)

    @torch.inference_mode()
    def capture_drafted(self, capture: Capture, progress: Callable[[float], None]) -> None:
        """Capture steps with drafts."""
        if self._capturing is not None:
            self._drafted.capture(capture, progress)

    def most_drafts(self, num_lines: int) -> int:
        """See ``StepRunner``."""
        return self._drafted.most_drafts(num_lines)

    @property
    def _capturing(self) -> CapturingAttention | None:
        """Attention, if steps can be captured; else None."""
        if self._decoder.is_capturable and isinstance(self._attention, CapturingAttention):
            return self._attention
        return None

    @property
    def step_sizes(self) -> dict[str, int]:
        """Properties that determine a decode step's time besides its batch size, for autotuning."""
        decoder = self._decoder
        return {
            "layers": decoder.spec.num_layers,
            "hidden": decoder.spec.hidden_size,
            "between": decoder.spec.intermediate_size,
            "heads": decoder.spec.num_heads,
            "vocab": decoder.spec.vocab_size,
            "weight_bytes": decoder.weight_bytes,
            "kv_bits": self._kv_bits,
            "early": int(self._kernels.launches_early),
        }

    @torch.inference_mode()
    def uncaptured(self, size: int) -> Replay | None:
        """Return an uncaptured decode step of padding; None if steps cannot be captured."""
        if (backend := self._capturing) is None:
            return None
        host, steps = self._input_buffers.scratch(size), self._steps(backend, size, LaunchEach())
        return next(step.whole for step in steps if step.attention.suits(host))

    def _steps(
        self, backend: CapturingAttention, size: int, capture: Capture
    ) -> list[CapturedStep]:
        gathering = self._input_buffers
        # Captures begin with a run of the launches: padding writes to the scratch page only.
        gathering.clear()
        inputs = gathering.inputs(gathering.scratch(size), size)
        return [self._captured_with(kind, inputs, capture) for kind in backend.captured(inputs)]

    def _captured_with(
        self, attention: CapturedAttention, inputs: StepInputs, capture: Capture
    ) -> CapturedStep:
        gathering, size = self._input_buffers, inputs.host.num_lines

        def forward() -> None:
            # Inputs are gathered in the graph, so that a replay needs no more than the upload.
            gathering.fill(inputs, 1)
            hidden = self._decoder.hidden(inputs.ids, inputs.positions, attention)
            self._decoder.raw_logits(hidden, out=self.logits[:size])

        def whole() -> None:
            forward()
            self._kernels.sample(
                self.logits[:size],
                gathering.rows[:size],
                gathering.next_positions[:size],
                self.sampling,
                self._chosen[:, :size],
                self._state.last_tokens,
            )

        return CapturedStep(attention, capture.whole(forward), capture.whole(whole))

    @torch.inference_mode()
    def launch(self, batch: StepBatch) -> Launched:
        """Launch a batch; after an exception the same batch may be launched again."""
        # Before anything is launched that reads rows on the device.
        self._state.sync()
        lines = np.flatnonzero(batch.samples)
        asked = StepRequests.from_batch(batch, lines, self._rows, self._processors)
        if batch.drafts is not None or self.shows_hidden:
            return self._drafted.launch(batch, lines, asked, shows_hidden=self.shows_hidden)
        # Captures are of decoding sequences alone, each of which samples one token.
        is_captured = batch.num_decode == len(batch) == len(lines) and not asked.needs_hidden
        size = self._graphs.size_for(len(batch)) if self._graphs and is_captured else None
        if self._graphs is None or size is None:
            return self._launch_each(batch, lines, asked)
        # One upload, ordered after the previous step's reads by the stream.
        host = self._input_buffers.upload(batch, size, self._shared_pages(batch))
        step = next(step for step in self._graphs[size] if step.attention.suits(host))
        step.attention.plan(host)
        if asked.is_empty:
            # Allocations, which may fail, come first: once tokens are sampled, a step cannot be
            # launched again.
            chosen = torch.empty_like(self._chosen[:, : len(batch)])
            hosts = self._copier.allocate([chosen])
            step.whole()
            # The next replay overwrites ``_chosen`` while this step's tokens are copied to the
            # host.
            chosen.copy_(self._chosen[:, : len(batch)])
            return StepOutcome(batch, lines, self._copier.copy([chosen], hosts), asked)
        # Logits are processed or reported: the sampler is launched separately.
        step.forward()
        return self._choose(batch, lines, self.logits[: len(batch)], None, asked)

    def _shared_pages(self, batch: StepBatch) -> int:
        """Return the pages of the decoding sequences' shared prefix, if attention can use it."""
        least, n = self._attention.least_saved, batch.num_decode
        if least is None or n < 2:
            return 0
        # Pages that are complete before this step, which it does not write to.
        full = batch.starts[:n] // self._page_size
        shared = shared_pages(self._rows.block_table[batch.rows[:n], : int(full.min())], full)
        # All sequences but the first save reading the prefix.
        return shared if (n - 1) * shared * self._page_size >= least else 0

    def _hidden(self, batch: StepBatch) -> torch.Tensor:
        """Run the layers of a batch without drafts, with uncaptured attention."""
        host = self._input_buffers.upload(batch, len(batch), self._shared_pages(batch))
        inputs = self._input_buffers.inputs(host, len(batch.ids))
        self._input_buffers.fill(inputs, int(batch.counts.max()))
        pieces, num_tokens = self._pieces, len(batch.ids)
        size = pieces.size_for(num_tokens) if pieces is not None else None
        # With a long shared prefix attention takes long enough to hide the other launches.
        if pieces is None or size is None or host.shared_pages:
            attend = self._attention.eager(inputs)
            return self._decoder.hidden(inputs.ids, inputs.positions, attend)
        plan = partial(self._attention.eager, inputs, pieces.attended(num_tokens))
        return pieces.hidden(size, num_tokens, plan)

    def _launch_each(
        self, batch: StepBatch, lines: NDArray[np.int64], asked: StepRequests
    ) -> Launched:
        """Launch a batch with prompts."""
        hidden = self._hidden(batch)
        if len(batch.ids) == len(lines):
            logits = self._decoder.raw_logits(hidden)
        else:
            # Only the last token of each sequence needs logits.
            last = upload(batch.last[lines], self.device)
            logits = self._decoder.raw_logits(hidden.index_select(0, last))
        return self._choose(batch, lines, logits, hidden, asked)

    def _choose(
        self,
        batch: StepBatch,
        lines: NDArray[np.int64],
        logits: torch.Tensor,
        hidden: torch.Tensor | None,
        asked: StepRequests,
    ) -> Launched:
        """Sample tokens without a graph, with all other outputs that are requested.

        Args:
            batch: batch of the step.
            lines: sequences that get a token, shape ``[n]``.
            logits: their logits, shape ``[n, vocab]``; not changed.
            hidden: hidden states of all tokens; None if not needed.
            asked: outputs requested in addition to tokens.
        """
        row = batch.rows[lines]
        # Processors change a copy: log-probabilities are reported of the raw logits.
        raw, failed, lost = logits, {}, {}
        if asked.is_processed:
            logits = raw.to(torch.float32, copy=True)
            failed = self._processors.apply(logits, row, raw.float)
        rows, positions = upload(
            np.stack([row, (batch.starts + batch.counts)[lines]]).astype(np.int32), self.device
        )
        tokens, best = self._kernels.sample(logits, rows, positions, self.sampling)
        # In the order in which ``StepOutcome.result`` reads the copies.
        sent = [torch.stack((tokens, best.view(torch.int32)))]
        has_sums = hidden is not None and len(lines) < len(batch)
        if hidden is not None and has_sums:
            # The last token of a chunk attends to all tokens before it, so NaN propagates to it.
            last = hidden.index_select(0, upload(batch.last, self.device))
            sent.append(last.sum(-1, dtype=torch.float32))
        if len(asked.reporting):
            index = upload(asked.reporting, self.device)
            sent += self._kernels.logprobs(
                raw.index_select(0, index), tokens.index_select(0, index), asked.most_top
            )
        if hidden is not None:
            for span in asked.prompts:
                states = hidden[span.at : span.at + len(span.tokens)]
                sent += self._kernels.logprobs(
                    self._decoder.raw_logits(states), upload(span.tokens, self.device), span.num_top
                )
            if asked.pools:
                sent.append(pool(hidden, asked.pools))
        pending, index = self._copier.copy(sent, self._copier.allocate(sent)), rows.long()
        # Last: a step that fails before this is launched again, with the previous tokens.
        self._state.last_tokens.index_copy_(0, index, tokens)
        if asked.is_processed:
            lost = self._processors.append(row, tokens)
        return StepOutcome(batch, lines, pending, asked, has_sums, failed, lost)
