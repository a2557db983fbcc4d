"""Paged sequences with known keys and values, and device steps over them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import NoReturn

import torch

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.gpu_api import DeviceAttention
from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.model.config.rope import RopeSpec
from gatewayd_engine.model.rotary_embedding import Rotary, frequencies


class Guarded(torch.Tensor):
    """A tensor that stands for one on a device: reading it on the host is an error."""

    def _read(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError("the host waits for the device")

    item = tolist = numpy = cpu = nonzero = _read
    __bool__ = __int__ = __float__ = __index__ = _read


def guarded(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as if it were on a device."""
    return tensor.as_subclass(Guarded)


class Sequences:
    """Rows of sequences over one pool.

    Attributes:
        known: of each row, keys and values after rotation, shape
            ``[layers, tokens, 2 * kv_heads, head_dim]``.
        tables: pages of each row.
        sinks: of each layer; None unless ``has_sinks``.
    """

    def __init__(
        self,
        shape: AttentionShape,
        page_size: int = 4,
        rows: int = 8,
        max_len: int = 240,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        seed: int = 0,
        element: torch.dtype | None = None,
        has_sinks: bool = False,
    ) -> None:
        self.shape = shape
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        per_row = -(-max_len // page_size)
        self.pool = KvPool(shape, rows * per_row, page_size, dtype, device, None, element)
        self.sinks = None
        if has_sinks:
            sinks = [torch.randn(shape.num_heads, device=device) for _ in shape.windows]
            self.sinks = [each.mul_(2.0) for each in sinks]
        # What nobody wrote must not matter.
        self.pool.data.copy_(torch.randn(self.pool.data.shape))
        self._on_device = guarded if device == "cpu" else self._uploaded
        pages = list(range(self.pool.num_pages))
        self.rng.shuffle(pages)
        self.tables = [pages[row * per_row : (row + 1) * per_row] for row in range(rows)]
        self.known = [self._empty() for _ in range(rows)]
        spec = RopeSpec("default", 10_000.0, shape.head_dim, max_len)
        angles = torch.outer(torch.arange(max_len).float(), frequencies(spec))
        table = torch.stack((angles.cos(), angles.sin()), -1).flatten(1).to(device)
        self.append = Append(shape, self.pool, TorchKernels(), [table] * shape.num_layers)
        self.rotary = Rotary(spec, max_len, device)

    def _empty(self) -> torch.Tensor:
        shape = self.shape
        return self._new(shape.num_layers, 0, 2 * shape.num_kv_heads, shape.head_dim)

    def _new(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.pool.dtype, device=self.pool.data.device)

    def _kept(self, numbers: torch.Tensor) -> torch.Tensor:
        """What the pool makes of keys and values."""
        return numbers.to(self.pool.data.dtype).to(numbers.dtype)

    def fill(self, row: int, num_tokens: int) -> None:
        """Give a row tokens without computing them."""
        shape, size = self.shape, self.pool.page_size
        new = self._new(shape.num_layers, num_tokens, 2 * shape.num_kv_heads, shape.head_dim)
        new = self._kept(new.normal_())
        at = torch.arange(num_tokens) + self.known[row].shape[1]
        self.known[row] = torch.cat((self.known[row], new), 1)
        pages, offsets = torch.tensor(self.tables[row])[at // size], at % size
        halves = torch.unflatten(new, 2, (2, shape.num_kv_heads)).transpose(0, 1)
        raw = self.pool.data.view(torch.uint8)
        raw[pages, :, :, offsets] = halves.to(self.pool.data.dtype).contiguous().view(torch.uint8)

    def share(self, row: int, other: int, num_pages: int) -> None:
        """Let a row begin with another's first pages."""
        size = self.pool.page_size
        self.tables[row][:num_pages] = self.tables[other][:num_pages]
        self.known[row] = self.known[other][:, : num_pages * size]

    def rotate(self, heads: torch.Tensor, positions: torch.Tensor) -> None:
        """Rotate queries and keys of one layer in place."""
        both = heads[:, : self.shape.num_heads + self.shape.num_kv_heads]
        self.rotary.rotate(self.rotary.view(both), self.rotary.at(positions))

    def inputs(self, counts: dict[int, int], padding: int = 0, shared_pages: int = 0) -> StepInputs:
        """A step in which rows compute so many tokens; those that compute one come first.

        Args:
            counts: tokens of each row.
            padding: lines of one token more, on the scratch page.
            shared_pages: what the host's plan says of it.
        """
        size = self.pool.page_size
        positions: list[int] = []
        write: list[int] = []
        pages: list[int] = []
        query, indptr = [0], [0]
        last: list[int] = []
        for row, count in counts.items():
            start = self.known[row].shape[1]
            end = start + count
            positions += range(start, end)
            write += [self.tables[row][at // size] * size + at % size for at in range(start, end)]
            pages += self.tables[row][: -(-end // size)]
            query.append(query[-1] + count)
            indptr.append(len(pages))
            last.append((end - 1) % size + 1)
        for _ in range(padding):
            positions.append(0)
            write.append(self.pool.num_pages * size)
            pages.append(self.pool.num_pages)
            query.append(query[-1] + 1)
            indptr.append(len(pages))
            last.append(1)
        ones = sum(count == 1 for count in counts.values()) + padding
        host = HostPlan(
            num_decode=ones,
            query_indptr=self._host(query),
            page_indptr=self._host(indptr),
            last_page_len=self._host(last),
            shared_pages=shared_pages,
            longest=max(
                (self.known[row].shape[1] + count for row, count in counts.items()), default=1
            ),
        )
        return StepInputs(
            ids=self._on_device(torch.zeros(len(positions), dtype=torch.int64)),
            positions=self._on_device(torch.tensor(positions)),
            write=self._on_device(torch.tensor(write)),
            page_indptr=self._on_device(host.page_indptr.clone()),
            pages=self._on_device(torch.tensor(pages, dtype=torch.int32)),
            last_page_len=self._on_device(host.last_page_len.clone()),
            host=host,
            shared_pages=self._on_device(torch.tensor([shared_pages], dtype=torch.int32)),
            query_indptr=self._on_device(host.query_indptr.clone()),
        )

    def _uploaded(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.pool.data.device)

    def _host(self, values: list[int]) -> torch.Tensor:
        tensor = torch.tensor(values, dtype=torch.int32)
        return tensor.pin_memory() if self.pool.data.is_cuda else tensor

    def heads(self, num_tokens: int) -> torch.Tensor:
        """Of one layer, before rotation, shape ``[num_tokens, heads + 2 * kv_heads, dim]``."""
        shape = self.shape
        num_heads = shape.num_heads + 2 * shape.num_kv_heads
        return self._new(num_tokens, num_heads, shape.head_dim).normal_()

    def compute(
        self, counts: dict[int, int], inputs: StepInputs, heads: torch.Tensor
    ) -> list[torch.Tensor]:
        """What a step must give by the definition, and remember its keys and values.

        Args:
            counts: tokens of each row, as in the inputs.
            inputs: the step.
            heads: of all layers, before rotation, shape ``[layers, num_tokens, heads, dim]``.

        Returns:
            By layer, float64, without the padding, shape ``[num_tokens, num_heads * head_dim]``.
        """
        heads = heads.clone()
        for layer in heads:
            self.rotate(layer, inputs.positions)
        outs: list[list[torch.Tensor]] = [[] for _ in heads]
        first = 0
        for row, count in counts.items():
            new = heads[:, first : first + count]
            kept = self._kept(new[:, :, self.shape.num_heads :])
            self.known[row] = torch.cat((self.known[row], kept), 1)
            for layer, out in enumerate(outs):
                query = new[layer, :, : self.shape.num_heads]
                out.append(self._dense(layer, query.double(), self.known[row][layer].double()))
            first += count
        return [torch.cat(out) for out in outs]

    def _dense(self, layer: int, query: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Attention of the last queries of one sequence."""
        shape = self.shape
        group = shape.num_heads // shape.num_kv_heads
        k, v = (half.repeat_interleave(group, 1) for half in kv.chunk(2, 1))
        scores = torch.einsum("qhd,khd->hqk", query, k) * shape.scale
        if shape.softcap:
            scores = shape.softcap * torch.tanh(scores / shape.softcap)
        at = torch.arange(len(kv), device=kv.device)
        now = at[len(kv) - len(query) :].unsqueeze(-1)
        hidden = at > now
        window = shape.windows[layer]
        if window and shape.chunked:
            hidden |= at // window != now // window
        elif window:
            hidden |= at <= now - window
        scores = scores.masked_fill(hidden, -torch.inf)
        if self.sinks is not None:
            own = self.sinks[layer].double().view(-1, 1, 1).expand(-1, len(query), 1)
            scores = torch.cat((scores, own), -1)
        weights = torch.softmax(scores, -1)[..., : len(kv)]
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)

    def check(
        self,
        attention: DeviceAttention,
        counts: dict[int, int],
        padding: int = 0,
        shared: int = 0,
        out: torch.Tensor | None = None,
    ) -> None:
        """Compute a step with a backend and compare each layer.

        The host's plan is gone before the first layer.
        """
        inputs = self.inputs(counts, padding, shared)
        total = len(inputs.positions)
        heads = torch.stack([self.heads(total) for _ in self.shape.windows])
        wanted = self.compute(counts, inputs, heads)
        attend = attention.eager(inputs, out)
        host = inputs.host
        for planned in (host.query_indptr, host.page_indptr, host.last_page_len):
            planned.fill_(-1)
        for layer, want in enumerate(wanted):
            got = attend(layer, heads[layer].clone())[: len(want)]
            assert out is None or got.data_ptr() == out.data_ptr()
            torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=1e-4)


class Static:
    """The tensors of one captured size, and the steps that are written into them.

    Attributes:
        inputs: the tensors.
    """

    def __init__(self, sequences: Sequences, size: int) -> None:
        self._sequences = sequences
        self._size = size
        inputs = sequences.inputs({}, padding=size)
        pages = inputs.pages.new_zeros(sequences.pool.num_pages + size)
        pages[:size] = inputs.pages
        self.inputs = replace(inputs, pages=pages)
        self._next = self.inputs

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Those on the device."""
        return _tensors(self.inputs)

    def prepare(
        self, rows: list[int], shared_pages: int = 0
    ) -> tuple[HostPlan, torch.Tensor, list[torch.Tensor]]:
        """Make a step in which rows compute a token, and begin with so many pages.

        Returns:
            Its plan, heads of all layers, and what each must give, as of ``Sequences.compute``.
        """
        counts = dict.fromkeys(rows, 1)
        self._next = self._sequences.inputs(counts, self._size - len(rows), shared_pages)
        heads = torch.stack(
            [self._sequences.heads(self._size) for _ in self._sequences.shape.windows]
        )
        wanted = self._sequences.compute(counts, self._next, heads)
        return self._next.host, heads, wanted

    def write(self) -> None:
        """Let the tensors hold what was prepared."""
        for tensor, new in zip(self.tensors, _tensors(self._next), strict=True):
            tensor[: len(new)] = new


def _tensors(inputs: StepInputs) -> list[torch.Tensor]:
    return [
        inputs.ids,
        inputs.positions,
        inputs.write,
        inputs.page_indptr,
        inputs.pages,
        inputs.last_page_len,
        *([] if inputs.shared_pages is None else [inputs.shared_pages]),
    ]


def some_counts(sequences: Sequences) -> dict[int, int]:
    """Rows that compute a token or a chunk, those of one token first."""
    rng = sequences.rng
    counts = {}
    for row in rng.sample(range(8), rng.randint(1, 8)):
        counts[row] = 1 if rng.random() < 0.7 else rng.choice([2, 4, 7, 13])
    return dict(sorted(counts.items(), key=lambda item: item[1] != 1))
