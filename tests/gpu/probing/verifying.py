"""The kernels of steps that verify drafts."""

from __future__ import annotations

import torch

from gatewayd_engine.kernels.base import Kernels
from tests.gpu.probing.attention import Contexts
from tests.gpu.probing.bench import TWIN, Bench
from tests.gpu.probing.trial import Tensors

_CONTEXT = 1024


def verifying(bench: Bench) -> None:
    """Inputs, attention, acceptance and moves, at each width that the engine pads lines to."""
    lines = bench.sizes.verified
    for width in bench.sizes.widths:
        with bench.at("verification", lines=lines, width=width):
            length = min(_CONTEXT, max(bench.contexts))
            bench.both("attention", Contexts(bench, lines, length, width=width).by_slots)
            # None of the others is ever launched early.
            _slots(bench, lines, width)
            _accept_and_keep(bench, lines, width)


def _slots(bench: Bench, lines: int, width: int) -> None:
    sizes, device = bench.sizes, bench.device
    each = _CONTEXT // sizes.page
    rows = torch.arange(lines, dtype=torch.int32, device=device)
    counts = torch.full_like(rows, width)
    starts = torch.full_like(rows, each * sizes.page - width)
    upto = torch.arange(lines + 1, dtype=torch.int32, device=device) * each
    given = bench.ints(lines * width, low=-1, high=3)
    depths = torch.arange(width, dtype=torch.int32, device=device).repeat(lines)
    last = bench.ints(lines, high=sizes.vocab)
    table = bench.ints(lines, 2 * each, high=1 << 20)
    ids, positions, write = torch.empty(3, lines * width, dtype=torch.int64, device=device)
    pages = torch.empty(lines * each, dtype=torch.int32, device=device)

    def launch(kernels: Kernels) -> None:
        kernels.slots(
            rows, counts, starts, upto, given, depths, last, table, sizes.page, 0,
            ids, positions, write, pages,
        )  # fmt: skip

    def compute(kernels: Kernels) -> Tensors:
        launch(kernels)
        return ids.clone(), positions.clone(), write.clone(), pages.clone()

    bench.kernel("slots", compute, launch, ways=("",))


def _accept_and_keep(bench: Bench, lines: int, width: int) -> None:
    """Trees of two children each, of which the second is always right: most tokens are moved."""
    sizes, device = bench.sizes, bench.device
    slot = torch.arange(width, dtype=torch.int32, device=device)
    drafts, parents = slot.repeat(lines), ((slot - 1) // 2).repeat(lines)
    said = (2 * slot + 2).repeat(lines)
    best = torch.zeros(lines * width, device=device)
    rows = torch.arange(lines, dtype=torch.int32, device=device)
    counts, first = torch.full_like(rows, width), rows * width
    last = torch.empty_like(rows)
    found = torch.zeros(lines, 1 + 2 * width, dtype=torch.int32, device=device)

    def accept(kernels: Kernels) -> None:
        kernels.accept(said, best, drafts, parents, first, counts, rows, last, found)

    def accepted(kernels: Kernels) -> Tensors:
        accept(kernels)
        return found.clone(), last.clone()

    bench.kernel("accept", accepted, accept, ways=("",))

    each = -(-2 * width // sizes.page) + 1
    table = torch.randperm(lines * each, device=device).int().view(lines, each)
    pool = bench.randn(lines * each, sizes.layers, 2, sizes.page, sizes.kv_heads, sizes.dim)
    starts = torch.full_like(rows, sizes.page - 1)
    accept(TWIN)
    path = found.clone()

    def keep(kernels: Kernels, pages: torch.Tensor = pool) -> None:
        kernels.compact_path(path, rows, starts, table, pages)

    def kept(kernels: Kernels) -> Tensors:
        pages = pool.clone()
        keep(kernels, pages)
        return (pages.view(torch.uint8),)

    bench.kernel("keep path", kept, keep, ways=("",))
