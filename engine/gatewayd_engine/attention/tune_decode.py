"""Chooses by measuring which kernels attend captured decode steps, by size and by context length.

FlashInfer's kernels and ours read the same keys and values at the same speed when contexts are
long. With short ones it matters what else they do: plan on the host, split, merge; that depends on
the chip, so both are timed where they will run, over all layers of the pool.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.attention.gpu_api import CapturedAttention
from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.tuning.clock import surviving
from gatewayd_engine.tuning.table import Case, DeviceLost, NoMemory, case

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.tuning.clock import LaunchClock
    from gatewayd_engine.tuning.table import TuningTable

OP = "decode_attention"
CONTEXTS = (256, 1024, 4096)
"""Tokens of each line that is timed; some have up to a page less."""
UP_TO = (512, 2048)
"""What is longer takes the choice of the next context: geometric means of neighbours."""
_MOST_ERROR = 2e-2
"""Between two answers of a line in bfloat16, relative to their length."""
_BLOCK = 256
"""Pages that are filled at a time: memory beside the pool is scarce."""
_log = logging.getLogger(__name__)


class AttentionDisagrees(Exception):
    """A candidate computes something else than the first."""


class ForLengths(CapturedAttention):
    """Captured attention for steps of some lengths.

    Args:
        inner: what attends.
        is_chosen: whether it is, at each of ``CONTEXTS``.
    """

    __slots__ = ("_inner", "_is_chosen")

    def __init__(self, inner: CapturedAttention, is_chosen: Sequence[bool]) -> None:
        self._inner = inner
        self._is_chosen = is_chosen

    def suits(self, host: HostPlan) -> bool:
        """See ``CapturedAttention``."""
        return self._is_chosen[bisect_left(UP_TO, host.longest)]

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """See ``RotatingAttend``."""
        return self._inner(layer, heads)

    def attended(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """See ``CapturedAttention``."""
        return self._inner.attended(layer, query)

    def plan(self, host: HostPlan) -> None:
        """See ``CapturedAttention``."""
        self._inner.plan(host)


class DecodeChoice:
    """Choices for one model.

    Ours may be faster than FlashInfer's where kernels are launched early and slower where they are
    launched in turn, or the other way round. Which is done is chosen later, by timing steps that
    attend already: the way is part of what a choice holds for.

    Args:
        shape: its attention.
        pool: where keys and values are; nothing is in it yet.
        kernels: of the device.
        table: what is known, and kept.
        clock: measures what is not.
    """

    def __init__(
        self,
        shape: AttentionShape,
        pool: KvPool,
        kernels: Kernels,
        table: TuningTable,
        clock: LaunchClock,
    ) -> None:
        self._shape = shape
        self._pool = pool
        self._kernels = kernels
        self._table = table
        self._clock = clock
        self._known: dict[tuple[int, bool], list[str]] = {}
        self._lacked_memory = False

    def names(self, inputs: StepInputs, candidates: Mapping[str, CapturedAttention]) -> list[str]:
        """The fastest candidate at each of ``CONTEXTS``, as kernels are launched now.

        Sizes up to the next power of two share the choice of the first that is asked for, so the
        largest should come first. Contexts for which the pool is too small take the choice of the
        next shorter one.

        Args:
            inputs: the tensors that they attend from; as they were when this returns.
            candidates: by name, the default first; planned for ``inputs`` when this returns.

        Raises:
            DeviceLost: nothing can be computed any more.
        """
        lines = len(inputs.ids)
        key = (lines - 1).bit_length(), self._kernels.launches_early
        if key not in self._known:
            self._known[key] = self._chosen(lines, inputs, candidates)
        return self._known[key]

    @torch.inference_mode()
    def _chosen(
        self, lines: int, inputs: StepInputs, candidates: Mapping[str, CapturedAttention]
    ) -> list[str]:
        default, names = next(iter(candidates)), []
        for context in CONTEXTS:
            num_pages = lines * -(-context // self._pool.page_size)
            if num_pages > min(self._pool.num_pages, len(inputs.pages)):
                break
            names.append(self._chosen_at(context, inputs, candidates))
        names += [names[-1] if names else default] * (len(CONTEXTS) - len(names))
        if set(names) != {default}:
            _log.info("%d lines are attended by %s", lines, dict(zip(CONTEXTS, names, strict=True)))
        return names

    def _chosen_at(
        self, context: int, inputs: StepInputs, candidates: Mapping[str, CapturedAttention]
    ) -> str:
        which, (default, *others) = self._case(len(inputs.ids), context), candidates
        if self._table.known(which, [default, *others]) == default:
            return default  # it is not checked: the pool's pages can be left alone
        device = self._pool.data.device

        def microseconds(name: str) -> float:
            with surviving(device, name):
                return self._clock(trial.calls(candidates[name]))

        def check(name: str) -> None:
            with surviving(device, name):
                trial.compare(candidates[name], candidates[default])

        name = default
        try:
            with _trial(self._shape, self._pool, inputs, context) as trial:
                name = self._table.chosen(which, [default, *others], microseconds, check)
        except NoMemory as error:
            if not self._lacked_memory:
                _log.warning(
                    "too little memory to choose decode attention, which may stay %s until the next"
                    " start: %s",
                    default,
                    error,
                )
            self._lacked_memory = True
        for candidate in candidates.values():
            # Else a step over these tensors would run by the plan of other lengths.
            candidate.plan(inputs.host)
        return name

    def _case(self, lines: int, context: int) -> Case:
        shape, pool = self._shape, self._pool
        return case(
            OP,
            f"{pool.dtype}/{pool.data.dtype}".replace("torch.", ""),
            m=lines,
            context=context,
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            dim=shape.head_dim,
            page=pool.page_size,
            window=max(shape.windows),
            windowed=sum(window > 0 for window in shape.windows),
            layers=shape.num_layers,
            cap=int(shape.softcap is not None),
            early=int(self._kernels.launches_early),
        )


@contextmanager
def _trial(
    shape: AttentionShape, pool: KvPool, inputs: StepInputs, context: int
) -> Iterator[_Trial]:
    """A trial, undone at the end; not after ``DeviceLost``, when nothing can be undone.

    Raises:
        DeviceLost: nothing can be computed any more.
        NoMemory: there is none for its keys and queries.
    """
    with surviving(pool.data.device, "random keys"):
        trial = _Trial(shape, pool, inputs, context)
    try:
        with surviving(pool.data.device, "random keys"):
            trial.fill()
        yield trial
    except DeviceLost:
        raise
    except BaseException:
        trial.undo()
        raise
    trial.undo()


class _Trial:
    """A step of lines of about one length, over pages of their own.

    Keys are random in the first layer of each window: other windows are other programs, which split
    contexts otherwise. No two neighbours have as many tokens in their last page.
    """

    def __init__(
        self, shape: AttentionShape, pool: KvPool, inputs: StepInputs, context: int
    ) -> None:
        self._shape, self._pool = shape, pool
        lines, size = len(inputs.ids), pool.page_size
        each = -(-context // size)
        upto = torch.arange(lines + 1, dtype=torch.int32)
        most = context - (each - 1) * size
        last = most - upto[1:] % most
        longest = (each - 1) * size + int(last.max())
        self._host = HostPlan(lines, upto, upto * each, last, longest=longest)
        # Not one behind another, as pages of a busy pool are not.
        pages = torch.randperm(lines * each, dtype=torch.int32)
        self._written = (
            (inputs.page_indptr, self._host.page_indptr),
            (inputs.pages, pages),
            (inputs.last_page_len, last),
        )
        self._before = [(tensor, tensor[: len(new)].clone()) for tensor, new in self._written]
        self._compared = [shape.windows.index(window) for window in sorted(set(shape.windows))]
        self._filled = [pool.data[: len(pages), layer] for layer in self._compared]
        heads = shape.num_heads + 2 * shape.num_kv_heads
        qkv = _random(lines, heads, shape.head_dim, like=pool)
        self._query = qkv[:, : shape.num_heads]

    def fill(self) -> None:
        """Write the step to the tensors, and keys and values to the pages."""
        for tensor, new in self._written:
            tensor[: len(new)].copy_(new)
        block = _random(*self._filled[0][:_BLOCK].shape, like=self._pool)
        for layer in self._filled:
            for begin in range(0, len(layer), _BLOCK):
                part = layer[begin : begin + _BLOCK]
                part.copy_(block[: len(part)])

    def undo(self) -> None:
        """Leave tensors and pages as they were."""
        for tensor, before in self._before:
            tensor[: len(before)].copy_(before)
        for layer in self._filled:
            # Floats of 8 bits know few operations.
            layer.view(torch.uint8).zero_()

    def calls(self, candidate: CapturedAttention) -> list[Callable[[], torch.Tensor]]:
        """Plan; then what launches each layer."""
        candidate.plan(self._host)
        layers = range(self._shape.num_layers)
        return [partial(candidate.attended, layer, self._query) for layer in layers]

    def compare(self, candidate: CapturedAttention, first: CapturedAttention) -> None:
        """Compare the answers of one layer of each window, line by line.

        Raises:
            AttentionDisagrees: they are not the same but for rounding.
        """
        made, wanted = self._answers(candidate), self._answers(first)
        apart = (made - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp_min(1e-30)
        worst = apart.max().item()
        if not worst <= _MOST_ERROR:  # so that no number is not enough either
            raise AttentionDisagrees(f"its answer is {worst:.1e} away from the default's")

    def _answers(self, candidate: CapturedAttention) -> torch.Tensor:
        """Of the layers that are compared, shape ``[layers, lines, num_heads * head_dim]``."""
        calls = self.calls(candidate)
        # Copies: layers write to one tensor.
        return torch.stack(
            [calls[layer]().to(torch.float32, copy=True) for layer in self._compared]
        )


def _random(*shape: int, like: KvPool) -> torch.Tensor:
    return torch.randn(shape, dtype=like.dtype, device=like.data.device)
