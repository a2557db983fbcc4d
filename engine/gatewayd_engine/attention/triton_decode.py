"""Decode attention by the built-in kernels, mainly for captured decode steps.

No planning is needed: the kernels read lengths and pages on the device. So it depends on no
library, and the host does no attention work between two replays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.gpu_api import CapturedAttention, CapturingAttention, DeviceAttention
from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.attention.tune_decode import DecodeChoice, LengthSwitchedAttention
from gatewayd_engine.kernels.attention.splits import (
    SharedPages,
    most_rows,
    num_multiprocessors,
    num_splits,
    row_tile,
    scratch_size,
)
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels


EagerAttend = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Attends some sequences of a step: takes a layer, all queries, and the output to fill."""
MOST_KINDS = 3
"""Most captures of one size: FlashInfer's, the built-in kernels', and that of shared prefixes."""


class DecodeKernels:
    """Built-in decode attention kernels, set up for one model.

    Args:
        shape: attention shape of the model.
        pool: KV pool.
        append: applies rotary embedding and appends keys and values to the pool.
        kernels: kernels of the device.
        max_lines: most sequences of a step.
        max_len: most tokens of a sequence.
        sinks: see ``device_attention``.
    """

    def __init__(
        self,
        shape: AttentionShape,
        pool: KvPool,
        append: Append,
        kernels: Kernels,
        max_lines: int,
        max_len: int,
        sinks: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self.shape = shape
        self.pool = pool
        self.append = append
        self._kernels = kernels
        self._sinks = sinks
        self._max_len = max_len
        self._layers = list(pool.data.unbind(1))
        self._multiprocessors = num_multiprocessors(pool.data.device)
        self._most_rows = most_rows(shape.head_dim, pool.dtype, pool.data.device)
        # Not monotonic: fewer sequences have more splits.
        sizes = [self._scratch_size(lines) for lines in range(1, max_lines + 1)]
        self._scratch = torch.empty(max(sizes), dtype=torch.float32, device=pool.data.device)

    def eager(self, inputs: StepInputs, num_lines: int) -> EagerAttend:
        """Return attention of a step's first ``num_lines`` sequences, each of one token."""
        first = replace(
            inputs,
            page_indptr=inputs.page_indptr[: num_lines + 1],
            last_page_len=inputs.last_page_len[:num_lines],
        )
        splits = {window: self.splits(num_lines, window) for window in set(self.shape.windows)}

        def attend(layer: int, query: torch.Tensor, out: torch.Tensor) -> None:
            of_window = splits[self.shape.windows[layer]]
            self.attend(layer, query[:num_lines], first, of_window, None, out[:num_lines])

        return attend

    @property
    def has_prompts(self) -> bool:
        """Whether prompts are attended by ``prompts``: those that torch's attention is not for.

        It has no kernel for latents, and keeps all scores of a chunk where there are sinks.
        """
        return self.shape.values_are_keys or self._sinks is not None

    def prompts(self, inputs: StepInputs, first: int) -> EagerAttend:
        """Return attention of a step's sequences from ``first`` on, each of any number of tokens.

        Args:
            inputs: inputs of the step, with ``query_indptr``.
            first: index of the first of them.
        """
        counts, indptr = inputs.host.query_indptr[first:].diff(), inputs.query_indptr
        if indptr is None:
            raise ValueError("a step with prompts has no query_indptr")
        most = int(counts.max())

        def attend(layer: int, query: torch.Tensor, out: torch.Tensor) -> None:
            shape = self.shape
            self._kernels.prompt_attention(
                *(query, self._layers[layer], indptr, inputs.page_indptr),
                *(inputs.pages, inputs.last_page_len, out),
                scale=shape.scale,
                softcap=shape.softcap,
                window=shape.windows[layer],
                sinks=None if self._sinks is None else self._sinks[layer],
                first=first,
                most_queries=most,
                chunked=shape.chunked,
            )

        return attend

    def splits(self, num_lines: int, window: int) -> int:
        """Return the most KV splits of a context in steps of ``num_lines`` sequences."""
        group = self.shape.num_heads // self.shape.num_kv_heads
        return self._splits(num_lines * -(-group // row_tile(group, self._most_rows)), window)

    def shared_splits(self, num_lines: int) -> int:
        """Return the most KV splits of a prefix that ``num_lines`` sequences share."""
        rows = num_lines * self.shape.num_heads // self.shape.num_kv_heads
        return self._splits(-(-rows // row_tile(rows, self._most_rows)), 0)

    def _splits(self, tiles: int, window: int) -> int:
        longest = min(window, self._max_len) if window else self._max_len
        return num_splits(tiles * self.shape.num_kv_heads, longest, self._multiprocessors)

    def _scratch_size(self, num_lines: int) -> int:
        """Return the scratch numbers for partial results of steps of ``num_lines`` sequences."""
        shape = self.shape
        splits = max(self.splits(num_lines, window) for window in shape.windows)
        splits += self.shared_splits(num_lines)
        return scratch_size(num_lines, shape.num_heads, shape.out_dim, splits)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        inputs: StepInputs,
        splits: int,
        shared: SharedPages | None,
        out: torch.Tensor,
    ) -> None:
        """Attend one query per sequence, ``[sequences, num_heads, head_dim]``, into ``out``."""
        shape = self.shape
        self._kernels.decode_attention(
            query,
            self._layers[layer],
            inputs.page_indptr,
            inputs.pages,
            inputs.last_page_len,
            out,
            scale=shape.scale,
            softcap=shape.softcap,
            window=shape.windows[layer],
            sinks=None if self._sinks is None else self._sinks[layer],
            width=1,
            num_queries=None,
            ancestors=None,
            splits=splits,
            scratch=self._scratch if splits > 1 or shared is not None else None,
            shared=shared,
            chunked=shape.chunked,
        )


class CapturedDecode(CapturedAttention):
    """Attention of captured decode steps of one size, always over the same tensors.

    Args:
        of: decode kernels of the model.
        inputs: input tensors of the capture.
        shares_prefixes: whether it is for steps whose sequences all share a prefix, whose pages are
            read once.
    """

    __slots__ = ("_flat", "_inputs", "_of", "_out", "_shared", "_splits")

    def __init__(
        self, of: DecodeKernels, inputs: StepInputs, shares_prefixes: bool = False
    ) -> None:
        self._of = of
        self._inputs = inputs
        shape, num_lines = of.shape, len(inputs.ids)
        # By sizes that are known at the capture: lengths are only on the device.
        self._splits = {window: of.splits(num_lines, window) for window in shape.windows}
        self._shared: SharedPages | None = None
        if shares_prefixes and inputs.shared_pages is not None:
            self._shared = SharedPages(inputs.shared_pages, of.shared_splits(num_lines))
        # Shared by all layers: each layer's output is consumed before the next attends.
        size = (num_lines, shape.num_heads, shape.out_dim)
        self._out = torch.empty(size, dtype=of.pool.dtype, device=of.pool.data.device)
        self._flat = self._out.flatten(1)

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """See ``RotatingAttend``."""
        of, inputs = self._of, self._inputs
        return self.attended(layer, of.append(layer, heads, inputs))

    def attended(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """See ``CapturedAttention``."""
        splits = self._splits[self._of.shape.windows[layer]]
        self._of.attend(layer, query, self._inputs, splits, self._shared, self._out)
        return self._flat

    def suits(self, host: HostPlan) -> bool:
        """See ``CapturedAttention``."""
        return self._shared is None or host.shared_pages > 0

    def plan(self, host: HostPlan) -> None:
        """See ``CapturedAttention``."""
        if self._of.pool.transfers.pending:
            # A graph cannot wait layer by layer: all loads must be complete before it starts.
            self._of.pool.transfers.wait()


class DecodeAttention:
    """Captured decode steps by the built-in kernels, all other steps by another backend.

    Args:
        kernels: decode kernels of the model.
        other: backend of steps with prompts; if it supports captures, it also attends the decode
            steps for which the built-in kernels are not chosen.
        least_saved: tokens in common, not counting the first sequence's, from which on a shared
            prefix is attended once; None never does that, nor do models with windows, as a token
            may not see the prefix any more.
        choice: chooses between both kinds of captured steps; None uses the other backend's, except
            for steps whose sequences share a prefix.
    """

    def __init__(
        self,
        kernels: DecodeKernels,
        other: DeviceAttention,
        least_saved: int | None = None,
        choice: DecodeChoice | None = None,
    ) -> None:
        self._kernels = kernels
        self._other = other
        self._choice = choice
        self.least_saved = None if any(kernels.shape.windows) else least_saved

    def eager(self, inputs: StepInputs, out: torch.Tensor | None = None) -> RotatingAttend:
        """See ``DeviceAttention``."""
        return self._other.eager(inputs, out)

    def captured(self, inputs: StepInputs) -> list[CapturedAttention]:
        """See ``CapturingAttention``."""
        kinds: list[CapturedAttention] = []
        if self.least_saved is not None and inputs.host.num_lines > 1:
            # First, as a step is replayed by the first kind that suits it.
            kinds.append(CapturedDecode(self._kernels, inputs, shares_prefixes=True))
        theirs = self._other.captured(inputs) if isinstance(self._other, CapturingAttention) else []
        if not theirs:
            return [*kinds, CapturedDecode(self._kernels, inputs)]
        if self._choice is None or len(theirs) != 1:
            return [*kinds, *theirs]
        candidates = {"flashinfer": theirs[0], "triton": CapturedDecode(self._kernels, inputs)}
        names = self._choice.names(inputs, candidates)
        # One capture for each candidate that is chosen at any length.
        for name in dict.fromkeys(names):
            is_chosen = [name == other for other in names]
            inner = candidates[name]
            kinds.append(inner if all(is_chosen) else LengthSwitchedAttention(inner, is_chosen))
        return kinds
