"""Benchmark: quality loss of KV compaction by attention matching, against other methods.

Contexts of up to 1,024 tokens of the texts that quality is measured on; beyond that the model
was not trained and foresees nothing. Of each the first 832 tokens are the prompt, of which 768 are
compacted; the rest is read with the few in their place. What is fitted sees queries of the
prompt's last 256 tokens only, and errors are those of queries behind it.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.loader import read
from gatewayd_engine.model.parts import PlainParts
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.offline.quality.texts import bundled
from gatewayd_kvc_matching.fitting import FittedPositions, fit

PROMPT, COVERED, QUERIES, LONGEST, SHORTEST = 832, 768, 256, 1024, 960
RATIOS = (2, 4, 8)
NEEDLES = 8
SHARP = 0.5
"""A look at one key: it has more than this part of the front's mass."""
RIDGE = 1e-2

Pick = Callable[["Seen", int], FittedPositions]


@dataclass(frozen=True, slots=True)
class Seen:
    """One key head of one layer.

    Attributes:
        queries: times the scale, by token, shape ``[tokens, group, dim]``.
        keys, values: shape ``[tokens, dim]``.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    @property
    def shown(self) -> torch.Tensor:
        """Queries that a fit may see."""
        return self.queries[PROMPT - QUERIES : PROMPT].flatten(0, 1)

    @property
    def held_out(self) -> torch.Tensor:
        """Queries behind the prompt."""
        return self.queries[PROMPT:].flatten(0, 1)


class Whole:
    """Attends to all, and keeps what there is."""

    def __init__(self, decoder: Decoder) -> None:
        self.shape = decoder.spec.attention
        self.seen: list[list[Seen]] = []

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        shape, count = self.shape, len(query)
        keys, values = key_value.view(count, 2, shape.num_kv_heads, -1).permute(1, 2, 0, 3)
        by_head = query.view(count, shape.num_kv_heads, -1, shape.head_dim).transpose(0, 1)
        self.seen.append(
            [Seen(q * shape.scale, k, v) for q, k, v in zip(by_head, keys, values, strict=True)]
        )
        hidden = torch.ones(count, count, dtype=torch.bool).triu(1)
        return attend(by_head * shape.scale, keys, values, hidden, None)


class Shorter:
    """Attends to what stands for the front, to the rest of the prompt, and to what follows."""

    def __init__(
        self, seen: list[list[Seen]], found: list[list[FittedPositions]], scale: float
    ) -> None:
        self.seen, self.found, self.scale = seen, found, scale

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        of, found, count = self.seen[layer], self.found[layer], len(query)
        keys, values = key_value.view(count, 2, len(of), -1).permute(1, 2, 0, 3)
        rest = slice(COVERED, PROMPT)
        before = [
            (torch.cat((s.keys[f.places], s.keys[rest])), torch.cat((f.values, s.values[rest])))
            for s, f in zip(of, found, strict=True)
        ]
        keys = torch.cat((torch.stack([k for k, _ in before]), keys), 1)
        values = torch.cat((torch.stack([v for _, v in before]), values), 1)
        bias = torch.stack([f.bias for f in found])
        hidden = torch.ones(count, keys.shape[1], dtype=torch.bool).triu(keys.shape[1] - count + 1)
        by_head = query.view(count, len(of), -1, keys.shape[-1]).transpose(0, 1)
        return attend(by_head * self.scale, keys, values, hidden, bias)


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    hidden: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Attention by the definition; queries ``[kv_heads, n, group, dim]``."""
    scores = torch.einsum("hngd,hkd->hngk", queries, keys)
    if bias is not None:
        scores[..., : bias.shape[1]] += bias[:, None, None]
    weights = torch.softmax(scores.masked_fill(hidden[:, None], -torch.inf), -1)
    answer = torch.einsum("hngk,hkd->nhgd", weights, values)
    return answer.reshape(len(answer), -1)


def heavy(seen: Seen, kept: int) -> FittedPositions:
    """Half of them the newest, half those that got the most attention in the prompt (H2O)."""
    scores = torch.einsum("ngd,kd->gnk", seen.queries[:PROMPT], seen.keys[:PROMPT])
    hidden = torch.ones(PROMPT, PROMPT, dtype=torch.bool).triu(1)
    got = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1).sum((0, 1))[:COVERED]
    newest = torch.arange(COVERED - kept // 2, COVERED)
    got[newest] = -1
    places = torch.cat((got.topk(kept - len(newest)).indices, newest)).sort().values
    return FittedPositions(places, torch.zeros(kept), seen.values[places])


def matched(seen: Seen, kept: int, **how: Any) -> FittedPositions:
    """Attention matching, all of it or a part."""
    front = slice(COVERED)
    few = fit(seen.shown, seen.keys[front], seen.values[front], kept, ridge=RIDGE, **how)
    return FittedPositions(few.places, few.bias.float(), few.values.float())


METHODS: dict[str, Pick] = {
    "recent + heavy hitters": heavy,
    "matching": matched,
    "matching, greedy keys": partial(matched, greedy=True),
    "matching, biases 0": partial(matched, fits_mass=False),
    "matching, values as they were": partial(matched, fits_values=False),
    "its keys alone": partial(matched, fits_mass=False, fits_values=False),
}


@dataclass(slots=True)
class Losses:
    """What comes together over contexts."""

    answer: list[float] = field(default_factory=list)
    """Relative errors of what the front answers."""
    mass: list[float] = field(default_factory=list)
    """Errors of the logarithm of its mass."""
    looked: list[float] = field(default_factory=list)
    """Whether a look at one key of the front found its value."""
    needles: list[float] = field(default_factory=list)
    """The same of keys that nobody had asked for, if they are asked for."""
    divergence: list[float] = field(default_factory=list)
    agreed: list[float] = field(default_factory=list)
    surprise: dict[str, list[float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


def weigh(seen: Seen, few: FittedPositions, losses: Losses, generator: torch.Generator) -> None:
    """Compare what the few answer with what the front did."""
    keys, values, queries = seen.keys[:COVERED], seen.values[:COVERED], seen.held_out
    scores, of_few = queries @ keys.T, queries @ keys[few.places].T + few.bias
    shares = torch.softmax(scores, -1)
    answer, found = shares @ values, torch.softmax(of_few, -1) @ few.values
    losses.answer.append(float(((answer - found).norm(dim=-1) / answer.norm(dim=-1)).mean()))
    losses.mass.append(float((of_few.logsumexp(-1) - scores.logsumexp(-1)).abs().mean()))
    best = shares.max(-1)
    is_sharp = best.values > SHARP
    losses.looked += _found(found[is_sharp], best.indices[is_sharp], values)
    # Queries that point to one key so that it has 0.9 of the mass, wherever it is.
    places = torch.randint(COVERED, (NEEDLES,), generator=generator)
    asked = torch.stack([_pointing(keys, int(place)) for place in places])
    found = torch.softmax(asked @ keys[few.places].T + few.bias, -1) @ few.values
    losses.needles += _found(found, places, values)


def _pointing(keys: torch.Tensor, place: int) -> torch.Tensor:
    """A query for which one key has 0.9 of the mass, as short as can be along what sets it off."""
    toward = keys[place] - keys.mean(0)
    low, high = 0.0, 64.0
    for _ in range(20):
        middle = (low + high) / 2
        if float(torch.softmax(middle * (keys @ toward), -1)[place]) < 0.9:
            low = middle
        else:
            high = middle
    return high * toward


def _found(answers: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> list[float]:
    """Whether the value that each answer is nearest to is the one that was looked for."""
    nearest = torch.cdist(answers, values).argmin(-1)
    return (nearest == places).float().tolist()


def contexts(limit: int) -> Iterator[tuple[str, list[int]]]:
    """Chats one behind the other, and beginnings of source files."""
    tokenizer = Tokenizer.from_file(str(embedded.folder("nano") / "tokenizer.json"))
    packed: list[int] = []
    of_kind = {"chats": 0, "code": 0}
    for text in bundled():
        ids = tokenizer.encode(text.text).ids
        if text.kind == "chats":
            ids = packed = packed + ids
        if len(ids) >= (LONGEST if text.kind == "chats" else SHORTEST):
            packed = []
            of_kind[text.kind] += 1
            if of_kind[text.kind] <= limit:
                yield text.kind, ids[:LONGEST]


def load() -> Decoder:
    """The embedded model."""
    folder = embedded.folder("nano")
    spec = read_spec(Path(folder), None)
    checkpoint = Checkpoint.open(Path(folder), spec, None)
    return read(checkpoint, torch.float32, "cpu", lambda done: None, PlainParts())


@torch.inference_mode()
def measure(limit: int, ratios: Sequence[int], methods: Sequence[str]) -> dict[Any, Losses]:
    """What each method loses at each ratio; ``None`` is the whole context."""
    decoder = load()
    found: dict[Any, Losses] = {None: Losses()}
    for kind, ids in contexts(limit):
        whole = Whole(decoder)
        logits = decoder.logits(decoder.hidden(torch.tensor(ids), torch.arange(len(ids)), whole))
        told, after = logits[PROMPT:-1].log_softmax(-1), torch.tensor(ids[PROMPT + 1 :])
        found[None].surprise.setdefault(kind, []).append(float(F.nll_loss(told, after)))
        for ratio in ratios:
            for name in methods:
                losses = found.setdefault((ratio, name), Losses())
                began = time.process_time()
                few = [[METHODS[name](s, COVERED // ratio) for s in of] for of in whole.seen]
                losses.seconds.append(time.process_time() - began)
                generator = torch.Generator().manual_seed(len(losses.seconds))
                for of, by_head in zip(whole.seen, few, strict=True):
                    for seen, one in zip(of, by_head, strict=True):
                        weigh(seen, one, losses, generator)
                attend_ = Shorter(whole.seen, few, whole.shape.scale)
                hidden = decoder.hidden(
                    torch.tensor(ids[PROMPT:]), torch.arange(PROMPT, len(ids)), attend_
                )
                said = decoder.logits(hidden)[:-1].log_softmax(-1)
                losses.divergence.append(float((told.exp() * (told - said)).sum(-1).mean()))
                losses.agreed.append(float((told.argmax(-1) == said.argmax(-1)).float().mean()))
                losses.surprise.setdefault(kind, []).append(float(F.nll_loss(said, after)))
    return found


HEADS = ("of the front, kept as", "error", "mass", "looks", "needles", "KL", "agree", "ppl", "s")


def rows(found: dict[Any, Losses]) -> Iterator[tuple[str, ...]]:
    """The table, line by line."""
    yield HEADS
    yield ("all", *[""] * 6, perplexities(found[None]), "")
    for key, losses in found.items():
        if key is not None:
            yield (
                f"1/{key[0]}, {key[1]}",
                f"{fmean(losses.answer):.3f}",
                f"{fmean(losses.mass):.3f}",
                f"{fmean(losses.looked):.3f}",
                f"{fmean(losses.needles):.3f}",
                f"{fmean(losses.divergence):.5f}",
                f"{100 * fmean(losses.agreed):.2f} %",
                perplexities(losses),
                f"{fmean(losses.seconds):.2f}",
            )


def perplexities(losses: Losses) -> str:
    """Of chats, then of code."""
    return " / ".join(f"{math.exp(fmean(each)):.4f}" for each in losses.surprise.values())


def main() -> int:
    """Print the table, as markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, default=12, help="of chats, and of code")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for i, row in enumerate(rows(measure(options.contexts, RATIOS, list(METHODS)))):
        print("| " + " | ".join(row) + " |")
        if i == 0:
            print("| --- |" + " ---: |" * (len(row) - 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
