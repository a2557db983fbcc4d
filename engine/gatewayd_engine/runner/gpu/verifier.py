"""Verification of drafts on the device, with the result packed into one copy to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.transfers import HostCopier, upload
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.servable import ServableModel
from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.runner.gpu.device_rows import DeviceRows
from gatewayd_engine.runner.gpu.draft_slots import aligned
from gatewayd_engine.runner.gpu.step_outcome import StepRequests
from gatewayd_engine.runner.gpu.verified_step import VerifiedStep
from gatewayd_engine.runner.pooling import pool
from gatewayd_engine.sampling.guides.processors import GuidedProcessors
from gatewayd_engine.sampling.verified_drafts import tokens_to_verify
from gatewayd_engine.state.in_flight import Launched
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import BatchDrafts, StepBatch


class ForwardOutput(NamedTuple):
    """Output of the layers of a step.

    Attributes:
        at: index in ``hidden`` of each token of the batch, shape ``[num_tokens]``.
        hidden: hidden states of all tokens and of padding, shape ``[n, hidden]``.
        logits: logits of all of ``hidden``, shape ``[n, vocab]``; None if not computed.
        width: slots to which each sequence is padded, if ``hidden`` has nothing else; 0 if it is
            laid out differently.
        is_kept: whether ``hidden`` is not overwritten by the next step.
    """

    at: NDArray[np.int64]
    hidden: torch.Tensor
    logits: torch.Tensor | None
    width: int
    is_kept: bool


@dataclass(frozen=True, slots=True)
class _Slots:
    """Slots to verify, on the device; all int32.

    Attributes:
        rows, positions, tokens, parents: for each slot: its row, the position of the token after
            it, its own token, and its parent slot; shape ``[n]``.
        line_rows, first, counts, starts: for each sequence: its row, where its slots begin, their
            number, and the position of the first, shape ``[sequences]``.
        width: most slots of a sequence.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    tokens: torch.Tensor
    parents: torch.Tensor
    line_rows: torch.Tensor
    first: torch.Tensor
    counts: torch.Tensor
    starts: torch.Tensor
    width: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Verifier:
    """Samples all slots of a step at once, and accepts drafts.

    No sequence with drafts has logits processors; those of others run on the device. The token
    masks of guides after drafts are computed before verification.

    Args:
        decoder: decoder of the model.
        pool: KV pool.
        rows: batch rows.
        processors: logits processors and guides of the rows.
        state: batch rows on the device.
        kernels: kernels of the device.
        copier: copies results to the host.
        launch: runs a batch without drafts.
    """

    _decoder: ServableModel
    _pool: KvPool
    _rows: RunningBatch
    _processors: GuidedProcessors
    _state: DeviceRows
    _kernels: Kernels
    _copier: HostCopier
    _launch: Callable[[StepBatch], Launched]

    def launch(
        self,
        batch: StepBatch,
        lines: NDArray[np.int64],
        asked: StepRequests,
        computed: ForwardOutput,
        *,
        shows_hidden: bool,
    ) -> Launched:
        """Sample and accept tokens, and copy them to the host; see ``DraftedSteps.launch``."""
        drafts = batch.drafts
        if drafts is None:
            drafts = BatchDrafts.none(len(batch))
        hidden, device = computed.hidden, self._decoder.device
        slot_tokens = tokens_to_verify(batch, drafts, lines)
        wanted = computed.at[slot_tokens]
        logits = computed.logits
        # Processors and log-probabilities need each sequence's logits without padding.
        is_padded = computed.width and not asked.is_processed and not len(asked.reporting)
        if logits is None:
            logits = self._decoder.raw_logits(hidden.index_select(0, upload(wanted, device)))
        elif not is_padded:
            logits = logits.index_select(0, upload(wanted, device))
        width = computed.width if is_padded else 0
        # Sample the token after every slot, whether or not the slot will be accepted.
        slots = self._slots(batch, drafts, lines, batch.ids[slot_tokens], wanted, width)
        raw, raised = logits, dict[int, Fault]()
        if asked.is_processed:
            logits, raised = self._processed(batch, drafts, lines, raw)
        if len(lines):
            tokens, best = self._kernels.sample(
                logits, slots.rows, slots.positions, self._state.sampling
            )
        else:
            # No sequence samples: empty tensors of the right types.
            tokens, best = slots.tokens, slots.tokens.float()
        # First among the copies, as ``VerifiedStep`` reads them; ``accept`` fills it at the end.
        packed = torch.empty((len(lines), 1 + 2 * slots.width), dtype=torch.int32, device=device)
        sent = [packed]
        # Outputs beyond tokens, in the order in which ``VerifiedStep`` reads them.
        has_chunks = len(lines) < len(batch)
        if has_chunks:
            # The last token of a chunk attends to all tokens before it, so NaN propagates to it.
            last = computed.at[batch.last[~batch.samples]]
            sums = hidden.index_select(0, upload(last, device)).sum(-1, dtype=torch.float32)
            sent.append(sums)
        if len(asked.reporting):
            counts = drafts.counts[lines] + 1
            asks = np.repeat(np.isin(np.arange(len(lines)), asked.reporting), counts)
            index = upload(np.flatnonzero(asks), device)
            sent += self._kernels.logprobs(
                raw.index_select(0, index), tokens.index_select(0, index), asked.most_top
            )
        for span in asked.prompts:
            first = int(computed.at[span.at])
            prompt_logits = self._decoder.raw_logits(hidden[first : first + len(span.tokens)])
            sent += self._kernels.logprobs(prompt_logits, upload(span.tokens, device), span.num_top)
        if asked.pools:
            spans = [
                one._replace(at=int(computed.at[one.at]), to=int(computed.at[one.to - 1]) + 1)
                for one in asked.pools
            ]
            sent.append(pool(hidden, spans))
        # Hidden states for the drafter stay on the device.
        shown = None
        if shows_hidden:
            # Without a copy only if the tensor is in the order of the batch and outlives the next
            # step.
            is_all = computed.is_kept and len(computed.at) == len(hidden)
            is_all = is_all and bool((computed.at == np.arange(len(hidden))).all())
            shown = hidden if is_all else hidden.index_select(0, upload(computed.at, device))
        hosts = self._copier.allocate(sent)
        # Last: a step that fails before this is launched again.
        self._kernels.accept(
            tokens,
            best,
            slots.tokens,
            slots.parents,
            slots.first,
            slots.counts,
            slots.line_rows,
            self._state.last_tokens,
            packed,
        )
        if drafts.parents is not None:
            self._kernels.compact_path(
                packed, slots.line_rows, slots.starts, self._state.block_table, self._pool.data
            )
        pending = self._copier.copy(sent, hosts)
        return VerifiedStep(
            batch=replace(batch, drafts=drafts),
            lines=lines,
            pending=pending,
            asked=asked,
            width=slots.width,
            has_chunks=has_chunks,
            raised=raised,
            shown=shown,
            processors=self._processors,
            again=self._run_plain,
        )

    def _slots(
        self,
        batch: StepBatch,
        drafts: BatchDrafts,
        lines: NDArray[np.int64],
        ids: NDArray[np.int64],
        wanted: NDArray[np.int64],
        width: int,
    ) -> _Slots:
        """Upload the slots to verify.

        Args:
            batch: batch of the step.
            drafts: drafts of its sequences.
            lines: sequences that get tokens, shape ``[n]``.
            ids: token ids of their slots, shape ``[slots]``.
            wanted: index of their slots in ``ForwardOutput.hidden``, shape ``[slots]``.
            width: slots of each sequence, if all are sampled, including padding; 0 if not.
        """
        counts = drafts.counts[lines] + 1
        first = np.cumsum(counts) - counts
        slot = np.arange(len(wanted)) - np.repeat(first, counts)
        at, size = (wanted, len(lines) * width) if width else (np.arange(len(wanted)), len(wanted))
        depth, parents = slot, slot - 1
        if drafts.parents is not None:
            before = drafts.parents[lines] + 1
            _, depths = drafts.at(lines).lineage(before.shape[1] + 1)
            of = np.repeat(np.arange(len(lines)), counts)
            depth = depths[of, slot]
            parents = np.where(slot > 0, before[of, np.maximum(slot - 1, 0)], -1)
        # Position of slot 0, the last token before the drafts.
        starts = batch.starts[lines] + batch.settled[lines] - 1
        sizes = [size] * 4 + [len(lines)] * 4
        # All columns in one upload.
        begins = aligned(sizes)
        host = np.zeros(begins[-1], np.int32)
        rows, positions, tokens, before, *columns = (
            host[begin : begin + of] for begin, of in zip(begins, sizes, strict=False)
        )
        # Padding slots sample by the parameters of the padding row; no result of theirs is read.
        rows[:] = self._state.padding
        rows[at] = np.repeat(batch.rows[lines], counts)
        # Position of the token after the slot: together with the row's seed it keys the sample.
        positions[at] = np.repeat(starts, counts) + depth + 1
        tokens[at] = ids
        before[at] = parents
        columns[0][:] = batch.rows[lines]
        columns[1][:] = np.arange(len(lines)) * width if width else first
        columns[2][:], columns[3][:] = counts, starts
        sent = upload(host, self._decoder.device)
        slot_rows, next_positions, slot_tokens, before_slots, *of_lines = (
            sent[begin : begin + of] for begin, of in zip(begins, sizes, strict=False)
        )
        line_rows, line_first, line_counts, line_starts = of_lines
        return _Slots(
            rows=slot_rows,
            positions=next_positions,
            tokens=slot_tokens,
            parents=before_slots,
            line_rows=line_rows,
            first=line_first,
            counts=line_counts,
            starts=line_starts,
            width=width or drafts.tokens.shape[1] + 1,
        )

    def _processed(
        self, batch: StepBatch, drafts: BatchDrafts, lines: NDArray[np.int64], raw: torch.Tensor
    ) -> tuple[torch.Tensor, dict[int, Fault]]:
        """Apply processors and guides; return the logits, and faults by index of ``lines``."""
        logits = raw.to(torch.float32, copy=True)
        # Drafts of rows with a grammar are chains, also in batches with trees.
        own = replace(drafts.at(lines), parents=None)
        return logits, self._processors.apply_along(logits, batch.rows[lines], own, raw.float)

    def _run_plain(self, batch: StepBatch, line: int) -> Launched:
        """Recompute a sequence without its drafts, after zeroing the KV slots they wrote."""
        size = self._pool.page_size
        places = np.arange(
            batch.starts[line] + batch.settled[line], batch.starts[line] + batch.counts[line]
        )
        table = self._rows.block_table[batch.rows[line]]
        # Slots of the drafts: NaN in them would reach the sequence again, as no mask suppresses it.
        pages = upload(table[places // size], self._decoder.device)
        raw = self._pool.data.view(torch.uint8)
        # A zero of the device: a number would be copied from the host, and waited for.
        raw[pages, :, :, upload(places % size, self._decoder.device)] = raw.new_zeros(1)
        return self._launch(batch.only(line).without_drafts())
