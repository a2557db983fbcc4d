"""Decode attention cases: rows over paged contexts, by kernels and by the definition."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from gatewayd_engine.kernels.attention.splits import SharedPages, scratch_size
from gatewayd_engine.kernels.base import Kernels


@dataclass(frozen=True)
class Case:
    """What is attended, and how.

    Attributes:
        starts: tokens of each line before the step.
        counts: queries of each line.
        width: queries that each line has room for.
        parents: of each query in a draft tree, by slot, -1 for none; None without one.
        shared: how many pages all lines begin with, and their parts; None for none. Lines that have
            fewer pages are padding.
        value_dim: numbers of a key that are its value; 0 where values are of their own.
    """

    starts: tuple[int, ...]
    counts: tuple[int, ...] = ()
    width: int = 1
    parents: tuple[int, ...] | None = None
    num_heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    page_size: int = 4
    window: int = 0
    chunked: bool = False
    softcap: float | None = None
    has_sinks: bool = False
    splits: int = 1
    shared: tuple[int, int] | None = None
    dtype: torch.dtype = torch.float32
    element: torch.dtype | None = None
    value_dim: int = 0

    @property
    def real(self) -> tuple[int, ...]:
        """Queries of each line."""
        return self.counts or (self.width,) * len(self.starts)

    def sees(self, query: int, token: int, start: int) -> bool:
        """Whether a query of a slot sees a token at a position, by following the tree."""
        if self.parents is None:
            way = list(range(query, -1, -1))
        else:
            way = []
            while query >= 0:
                way.append(query)
                query = self.parents[query]
        # Nearest first, then all before the step.
        now = start + len(way) - 1
        at = now - way.index(token - start) if token - start in way else token
        known = token < start or token - start in way
        if self.chunked and self.window:
            return known and at // self.window == now // self.window
        return known and (not self.window or now - at < self.window)


class Lines:
    """Tensors of a case, of random numbers."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(len(str(case)))
        lengths = [start + count for start, count in zip(case.starts, case.real, strict=True)]
        num_pages = [max(-(-length // case.page_size), 1) for length in lengths]
        total = sum(num_pages)
        self.pages = torch.randperm(total + 2, generator=generator)[:total].int()
        self.page_indptr = torch.tensor([0, *num_pages]).cumsum(0).int()
        self.is_real = torch.ones(len(num_pages), dtype=torch.bool)
        for line, first in enumerate(self.page_indptr[:-1].tolist() if case.shared else ()):
            count = case.shared[0] if case.shared else 0
            self.is_real[line] = num_pages[line] >= count
            if self.is_real[line]:
                self.pages[first : first + count] = self.pages[:count]
        self.last = torch.tensor(
            [n - (p - 1) * case.page_size for n, p in zip(lengths, num_pages, strict=True)]
        ).int()
        self.lengths = lengths
        # Two layers, of which the second is read.
        parts = 1 if case.value_dim else 2
        shape = (total + 2, 2, parts, case.page_size, case.kv_heads, case.dim)
        pool = torch.randn(shape, generator=generator).to(case.dtype)
        self.pool = pool if case.element is None else pool.to(case.element)
        tokens = len(case.starts) * case.width
        heads = case.num_heads + 2 * case.kv_heads
        qkv = torch.randn((tokens, heads, case.dim), generator=generator).to(case.dtype)
        self.query = qkv[:, : case.num_heads]
        self.sinks = torch.randn(case.num_heads, generator=generator) if case.has_sinks else None
        self.device = device

    def ancestors(self) -> torch.Tensor | None:
        """The tree of each line, bit by bit."""
        case = self.case
        if case.parents is None:
            return None
        masks = []
        for query in range(case.width):
            mask, node = 0, query
            while node >= 0:
                mask |= 1 << node
                node = case.parents[node]
            masks.append(mask - (1 << 64) if mask >> 63 else mask)
        return torch.tensor(masks * len(case.starts))

    def attended(self, kernels: Kernels, **others: Any) -> torch.Tensor:
        """What kernels make of it."""
        case, to = self.case, self.device
        shape, dim = (len(self.query), case.num_heads), case.value_dim or case.dim
        # Rows of something wider, full of what must not be seen.
        out = torch.full((*shape, dim + 8), torch.nan, dtype=case.dtype, device=to)
        count, shared_splits = case.shared or (0, 0)
        size = scratch_size(*shape, dim, case.splits + shared_splits)
        is_split = case.splits + shared_splits > 1
        scratch = torch.full((size,), torch.nan, device=to) if is_split else None
        if case.shared:
            pages = torch.tensor([count], dtype=torch.int32, device=to)
            others["shared"] = SharedPages(pages, shared_splits)
        counts, sinks, ancestors = case.counts, self.sinks, self.ancestors()
        kernels.decode_attention(
            self.query.to(to),
            self.pool.to(to)[:, 1],
            self.page_indptr.to(to),
            self.pages.to(to),
            self.last.to(to),
            out[..., :dim],
            scale=0.3,
            softcap=case.softcap,
            window=case.window,
            sinks=None if sinks is None else sinks.to(to),
            width=case.width,
            num_queries=torch.tensor(counts).int().to(to) if counts else None,
            ancestors=None if ancestors is None else ancestors.to(to),
            splits=case.splits,
            scratch=scratch,
            chunked=case.chunked,
            **others,
        )
        assert out[..., dim:].isnan().all()
        return self._meant(out[..., :dim].cpu())

    def _meant(self, out: torch.Tensor) -> torch.Tensor:
        """Answers but for padding; where there is some, each line has one query."""
        return out[self.is_real] if self.case.shared else out

    def wanted(self) -> torch.Tensor:
        """The definition, one query, head and token at a time, float64."""
        case, group = self.case, self.case.num_heads // self.case.kv_heads
        dim = case.value_dim or case.dim
        out = torch.zeros(*self.query.shape[:2], dim, dtype=torch.float64)
        pool = self.pool[:, 1].to(torch.float32).double()
        for line, (start, count) in enumerate(zip(case.starts, case.real, strict=True)):
            table = self.pages[int(self.page_indptr[line]) : int(self.page_indptr[line + 1])]
            halves = pool[table.long()].transpose(0, 1).flatten(1, 2)[:, : self.lengths[line]]
            k, v = halves[0], halves[-1, ..., :dim]
            for slot in range(count):
                seen = [at for at in range(self.lengths[line]) if case.sees(slot, at, start)]
                token = line * case.width + slot
                for head in range(case.num_heads):
                    q = self.query[token, head].double()
                    scores = k[seen, head // group] @ q * 0.3
                    if case.softcap is not None:
                        scores = case.softcap * torch.tanh(scores / case.softcap)
                    total = torch.logsumexp(scores, 0)
                    if self.sinks is not None:
                        sink = self.sinks[head].double()
                        total = torch.logaddexp(total, sink)
                    out[token, head] = torch.exp(scores - total) @ v[seen, head // group]
        return self._meant(out)


@dataclass(frozen=True)
class Chunks:
    """Sequences of a step of which those from ``first`` on have several tokens.

    Attributes:
        case: lengths before the step, and their queries.
        first: sequences before the chunks.
    """

    case: Case
    first: int = 0

    def attended(self, kernels: Kernels, device: torch.device) -> torch.Tensor:
        """What kernels make of it, ``[tokens, heads, value_dim]`` of the chunks alone."""
        lines, case = Lines(self.case, device), self.case
        counts = torch.tensor(case.counts)
        indptr = torch.cat((torch.zeros(1), counts.cumsum(0))).int()
        query = lines.query[self._real()].to(device)
        out = torch.full((len(query), case.num_heads, case.value_dim or case.dim), 7.0)
        out = out.to(device, case.dtype)
        kernels.prompt_attention(
            query,
            lines.pool.to(device)[:, 1],
            indptr.to(device),
            lines.page_indptr.to(device),
            lines.pages.to(device),
            lines.last.to(device),
            out,
            scale=0.3,
            softcap=case.softcap,
            window=case.window,
            sinks=None if lines.sinks is None else lines.sinks.to(device),
            first=self.first,
            most_queries=int(counts[self.first :].max()),
            chunked=case.chunked,
        )
        before = int(indptr[self.first])
        assert (out[:before] == 7.0).all()
        return out[before:].cpu()

    def wanted(self) -> torch.Tensor:
        """By the definition."""
        before = sum(self.case.counts[: self.first])
        return Lines(self.case, torch.device("cpu")).wanted()[self._real()][before:]

    def _real(self) -> torch.Tensor:
        """Which slots are queries."""
        slots = torch.arange(self.case.width)
        return (slots < torch.tensor(self.case.counts).unsqueeze(1)).flatten()


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal but for rounding: of weights, of answers, and of sums."""
    rtol = 2e-5 if actual.dtype == torch.float32 else 2**-6
    atol = rtol if actual.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(actual.double(), wanted.double(), rtol=rtol, atol=atol)
    assert math.isfinite(float(actual.float().sum()))
