"""Autotuning of the decode attention of captured steps, by batch size and context length.

FlashInfer's kernels and the built-in ones read keys and values at the same speed when contexts are
long. With short ones the overhead matters: planning on the host, splitting, merging. It depends on
the GPU, so both are timed where they will run, over all layers of the pool.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.attention.gpu_api import CapturedAttention
from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.tuning.clock import device_errors
from gatewayd_engine.tuning.table import Case, DeviceLost, NoMemory, case

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.tuning.clock import LaunchClock
    from gatewayd_engine.tuning.table import TuningTable

OP = "decode_attention"
CONTEXTS = (256, 1024, 4096)
"""Context lengths that are timed; some sequences have up to a page less."""
UP_TO = (512, 2048)
"""Upper bounds of the lengths that use each of ``CONTEXTS``: geometric means of adjacent ones."""
_MOST_ERROR = 2e-2
"""Most difference of two outputs of a sequence in bfloat16, relative to their norm."""
_BLOCK = 256
"""Pages that are filled at a time: little memory is left outside the pool."""
_log = logging.getLogger(__name__)


class AttentionMismatch(Exception):
    """A candidate's output differs from the default's."""


class LengthSwitchedAttention(CapturedAttention):
    """Captured attention that is used for some context lengths only.

    Args:
        inner: captured attention.
        is_chosen: whether it is used, at each of ``CONTEXTS``.
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


@dataclass(slots=True, eq=False, repr=False)
class DecodeChoice:
    """Autotuned choices of decode attention for one model.

    The built-in kernels may be faster than FlashInfer's with programmatic dependent launch and
    slower without, or the other way round. The launch mode is chosen later, by timing steps that
    already use some attention, so it is part of the key of a choice.

    Args:
        shape: attention shape of the model.
        pool: KV pool, still empty.
        kernels: kernels of the device.
        table: persistent table of measured choices.
        clock: measures cases that are not in the table.
        has_sinks: whether the model has attention sinks.
    """

    _shape: AttentionShape
    _pool: KvPool
    _kernels: Kernels
    _table: TuningTable
    _clock: LaunchClock
    has_sinks: bool = False
    _known: dict[tuple[int, bool], list[str]] = field(default_factory=dict)
    _lacked_memory: bool = False

    def names(self, inputs: StepInputs, candidates: Mapping[str, CapturedAttention]) -> list[str]:
        """Return the fastest candidate at each of ``CONTEXTS``, in the current launch mode.

        Sizes up to the next power of two share the choice of the first that is requested, so the
        largest should come first. Contexts for which the pool is too small use the choice of the
        next shorter one.

        Args:
            inputs: input tensors of the candidates; restored when this returns.
            candidates: by name, the default first; planned for ``inputs`` when this returns.

        Raises:
            DeviceLost: the device cannot be used any more.
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
            chosen = dict(zip(CONTEXTS, names, strict=True))
            _log.info("decode attention of %d sequences by context length: %s", lines, chosen)
        return names

    def _chosen_at(
        self, context: int, inputs: StepInputs, candidates: Mapping[str, CapturedAttention]
    ) -> str:
        which, (default, *others) = self._case(len(inputs.ids), context), candidates
        if self._table.known(which, [default, *others]) == default:
            return default  # needs no check, so the pool's pages are not touched
        device = self._pool.data.device

        def microseconds(name: str) -> float:
            with device_errors(device, name):
                return self._clock(trial.calls(candidates[name]))

        def check(name: str) -> None:
            with device_errors(device, name):
                trial.compare(candidates[name], candidates[default])

        # The default stays if there is too little memory to measure.
        name = default
        try:
            with _trial(self._shape, self._pool, inputs, context) as trial:
                name = self._table.chosen(which, [default, *others], microseconds, check)
        except NoMemory as error:
            if not self._lacked_memory:
                _log.warning(
                    "too little memory to autotune decode attention, which may stay %s until the"
                    " next start: %s",
                    default,
                    error,
                )
            self._lacked_memory = True
        for candidate in candidates.values():
            # Otherwise a step over these tensors would use a plan for other lengths.
            candidate.plan(inputs.host)
        return name

    def _case(self, lines: int, context: int) -> Case:
        shape, pool = self._shape, self._pool
        # Named where there are any, so that tables of models without sinks stay valid.
        sinks = {"sinks": 1} if self.has_sinks else {}
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
            **sinks,
        )


@contextmanager
def _trial(
    shape: AttentionShape, pool: KvPool, inputs: StepInputs, context: int
) -> Iterator[_Trial]:
    """Set up a trial and undo it at the end, except after ``DeviceLost``.

    Raises:
        DeviceLost: the device cannot be used any more.
        NoMemory: there is not enough memory for its keys and queries.
    """
    with device_errors(pool.data.device, "random keys"):
        trial = _Trial(shape, pool, inputs, context)
    try:
        with device_errors(pool.data.device, "random keys"):
            trial.fill()
        yield trial
    except DeviceLost:
        raise
    except BaseException:
        trial.undo()
        raise
    trial.undo()


class _Trial:
    """A decode step of sequences of similar lengths, each with its own pages.

    Keys are random in the first layer of each window size: other windows are compiled separately
    and split contexts differently. Adjacent sequences differ in the tokens of their last page.
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
        # Not contiguous, like the pages of a busy pool.
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
        # Queries are slices of a wider tensor, with the strides that they have in a step.
        qkv = _random(lines, heads, shape.head_dim, like=pool)
        self._query = qkv[:, : shape.num_heads]

    def fill(self) -> None:
        """Write the step to the input tensors, and random keys and values to the pages."""
        for tensor, new in self._written:
            tensor[: len(new)].copy_(new)
        block = _random(*self._filled[0][:_BLOCK].shape, like=self._pool)
        for layer in self._filled:
            for begin in range(0, len(layer), _BLOCK):
                part = layer[begin : begin + _BLOCK]
                part.copy_(block[: len(part)])

    def undo(self) -> None:
        """Restore the input tensors and zero the pages."""
        for tensor, before in self._before:
            tensor[: len(before)].copy_(before)
        for layer in self._filled:
            # torch supports few operations on 8-bit floats.
            layer.view(torch.uint8).zero_()

    def calls(self, candidate: CapturedAttention) -> list[Callable[[], torch.Tensor]]:
        """Plan the step and return the launches of its layers."""
        candidate.plan(self._host)
        layers = range(self._shape.num_layers)
        return [partial(candidate.attended, layer, self._query) for layer in layers]

    def compare(self, candidate: CapturedAttention, first: CapturedAttention) -> None:
        """Compare the outputs of one layer of each window, sequence by sequence.

        Raises:
            AttentionMismatch: they differ by more than rounding.
        """
        made, wanted = self._answers(candidate), self._answers(first)
        apart = (made - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp_min(1e-30)
        worst = apart.max().item()
        if not worst <= _MOST_ERROR:  # in this form NaN fails as well
            raise AttentionMismatch(f"relative difference {worst:.1e} from the default's output")

    def _answers(self, candidate: CapturedAttention) -> torch.Tensor:
        """Compute the compared layers' outputs, ``[layers, sequences, num_heads * head_dim]``."""
        calls = self.calls(candidate)
        # Copied, as all layers write to the same tensor.
        return torch.stack(
            [calls[layer]().to(torch.float32, copy=True) for layer in self._compared]
        )


def _random(*shape: int, like: KvPool) -> torch.Tensor:
    return torch.randn(shape, dtype=like.dtype, device=like.data.device)
