"""Draft verification cases: two implementations of the kernels compared."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.torch_kernels import TorchKernels

TWIN = TorchKernels()


@dataclass(frozen=True)
class Drafted:
    """Lines with their slots, the first of which is the last token.

    Attributes:
        said: the model's token after each slot of each line.
        drafts: token of each slot.
        parents: slot before each, -1 for the first.
        bad: slots whose largest logit is no number.
        is_asked: whether each line gets tokens.
    """

    said: list[list[int]]
    drafts: list[list[int]]
    parents: list[list[int]]
    bad: set[tuple[int, int]]
    is_asked: list[bool]


def random_drafted(seed: int, *, vocab: int = 3, most: int = 9) -> Drafted:
    """Few different tokens, so that many drafts are right; chains and trees."""
    rng = random.Random(seed)
    said, drafts, parents = [], [], []
    for _ in range(rng.randint(1, 5)):
        count = rng.randint(1, most)
        is_chain = rng.random() < 0.4
        before = [-1]
        tokens = [rng.randrange(vocab)]
        for slot in range(1, count):
            parent = slot - 1 if is_chain else rng.randrange(slot)
            taken = {tokens[i] for i in range(1, slot) if before[i] == parent}
            left = [token for token in range(vocab) if token not in taken]
            # No two children of one parent are the same token.
            parent = parent if left else slot - 1
            tokens.append(rng.choice(left or range(vocab)))
            before.append(parent)
        said.append([rng.randrange(vocab) for _ in range(count)])
        drafts.append(tokens)
        parents.append(before)
    lines = len(said)
    bad = {(line, rng.randrange(len(said[line]))) for line in range(lines) if rng.random() < 0.15}
    return Drafted(said, drafts, parents, bad, [rng.random() < 0.9 for _ in range(lines)])


def walked(drafted: Drafted) -> list[list[int]]:
    """The slots of each line's path, by the definition: none where a number went wrong."""
    paths: list[list[int]] = []
    for line, said in enumerate(drafted.said):
        if not drafted.is_asked[line] or any(at == line for at, _ in drafted.bad):
            paths.append([])
            continue
        path = [0]
        while True:
            children = [
                slot
                for slot in range(1, len(said))
                if drafted.parents[line][slot] == path[-1]
                and drafted.drafts[line][slot] == said[path[-1]]
            ]
            if not children:
                break
            path.append(children[0])
        paths.append(path)
    return paths


def accepted(
    kernels: Kernels, drafted: Drafted, device: torch.device, *, pads: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``accept`` says, and the rows' last tokens, with one row more, of padding."""
    lines = len(drafted.said)
    width = max(map(len, drafted.said)) + 1

    def flat(columns: list[list[int]], fill: int) -> torch.Tensor:
        rows = [[*own, *[fill] * (width - len(own))] if pads else own for own in columns]
        return torch.tensor([one for own in rows for one in own], dtype=torch.int32, device=device)

    counts = [len(own) * asked for own, asked in zip(drafted.said, drafted.is_asked, strict=True)]
    sizes = [width if pads else len(own) for own in drafted.said]
    first = torch.tensor([0, *sizes]).cumsum(0)[:-1].int().to(device)
    best = flat([[0] * len(own) for own in drafted.said], 0).float()
    for line, slot in drafted.bad:
        best[int(first[line]) + slot] = torch.tensor([torch.nan, torch.inf, -torch.inf])[slot % 3]
    last_tokens = torch.full((lines + 1,), -9, dtype=torch.int32, device=device)
    packed = torch.full((lines, 1 + 2 * width), -5, dtype=torch.int32, device=device)
    # Rows in another order than lines.
    rows = torch.arange(lines - 1, -1, -1, dtype=torch.int32, device=device)
    # What pads is no number and might be accepted.
    said = flat(drafted.said, 1)
    kernels.accept(
        said, best, flat(drafted.drafts, 1), flat(drafted.parents, 0), first,
        torch.tensor(counts, dtype=torch.int32, device=device), rows, last_tokens, packed,
    )  # fmt: skip
    return packed, last_tokens


def accept(kernels: Kernels, device: torch.device, seed: int, most: int = 9) -> None:
    drafted = random_drafted(seed, most=most)
    for pads in (False, True):
        mine = accepted(kernels, drafted, device, pads=pads)
        for actual, expected in zip(mine, accepted(TWIN, drafted, device, pads=pads), strict=True):
            assert torch.equal(actual, expected)


def slots(
    kernels: Kernels, device: torch.device, counts: list[int], starts: list[int], width: int
) -> None:
    """Lines with so many slots from such positions on."""
    lines, page_size = len(counts), 4
    pages = [-(-(start + count) // page_size) for start, count in zip(starts, counts, strict=True)]
    generator = torch.Generator().manual_seed(lines)

    def drawn(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator).int().to(device)

    rows = torch.randperm(lines + 2, generator=generator)[:lines].int().to(device)
    table = drawn(0, 1 << 20, lines + 2, max(pages) + 2)
    given, depths = drawn(-1, 3, lines * width), drawn(0, width, lines * width)
    last = drawn(100, 200, lines + 2)
    page_indptr = torch.tensor([0, *pages]).cumsum(0).int().to(device)
    count, start = (torch.tensor(of, dtype=torch.int32, device=device) for of in (counts, starts))

    def run(which: Kernels) -> list[torch.Tensor]:
        ids, positions, write = torch.full((3, lines * width), -7, device=device).unbind()
        flat = torch.full((sum(pages) + 5,), -7, dtype=torch.int32, device=device)
        which.slots(
            rows,
            count,
            start,
            page_indptr,
            given,
            depths,
            last,
            table,
            page_size,
            77,
            ids,
            positions,
            write,
            flat,
        )
        return [ids, positions, write, flat]

    for actual, expected in zip(run(kernels), run(TWIN), strict=True):
        assert torch.equal(actual, expected)


def compact_path(kernels: Kernels, device: torch.device, dtype: torch.dtype, size: int = 6) -> None:
    """Paths of which some leave the order of slots, over pages that are smaller than a line."""
    drafted = [random_drafted(seed, vocab=2) for seed in range(6)]
    one = max(drafted, key=lambda of: sum(map(len, walked(of))))
    packed, _ = accepted(TWIN, one, device)
    lines, page_size = len(one.said), 2
    starts = torch.arange(lines, dtype=torch.int32, device=device) + 1
    rows = torch.arange(lines - 1, -1, -1, dtype=torch.int32, device=device)
    each = (lines + 12) // page_size + 1
    table = torch.randperm(lines * each).view(lines, each).int().to(device)
    shape = (lines * each, 2, 2, page_size, 1, size)
    pool = torch.arange(lines * each * 8 * size).view(shape).to(device)
    pool = (pool % 240).to(torch.uint8).view(dtype) if dtype.itemsize == 1 else pool.to(dtype)
    mine, other = pool.clone(), pool.clone()
    TWIN.compact_path(packed, rows, starts, table, mine)
    kernels.compact_path(packed, rows, starts, table, other)
    assert torch.equal(other.view(torch.uint8), mine.view(torch.uint8))
    assert not torch.equal(other.view(torch.uint8), pool.view(torch.uint8))
