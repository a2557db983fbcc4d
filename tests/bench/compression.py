"""Benchmark: quality loss of sparse KV attention: attention mass, tokens, lookups.

The last tokens of texts, chats and source that the network was not trained on, are decoded one by
one, each after the text's own tokens. Selectors see of attention only what they would see in an
engine. Of 1,024 tokens, as nano was trained; of 2,048, its whole context, where it is less sure
what to look at.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quality.scheme_model import SchemeModel
from gatewayd_engine.offline.quality.scores import Scores
from gatewayd_engine.offline.quality.texts import bundled
from gatewayd_engine.offline.train.attention_traces import AttentionTrace, open_decoder, trace
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_engine.speculation.draft_heads import read_heads
from gatewayd_engine.speculation.draft_models import DraftTarget
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.resources import KvShape
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.simulation.resources import engine_resources

NANO = embedded.folder("nano")
LENGTHS, DECODED = (1024, 2048), 256
BUDGETS = (1 / 2, 1 / 4, 1 / 8, 1 / 16)
FIRST_LAYER, PAGE = 1, 16
STRATEGIES = ("predictor", "heavy")
HOST = PluginHost(Catalog.installed())


Texts = dict[str, list[list[int]]]
"""Token ids of texts by kind."""


def texts(length: int, most: int) -> Texts:
    """Texts of this length; no network was trained on them."""
    tokenizer = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    found: dict[str, list[list[int]]] = {}
    for kind in ("chats", "code"):
        ids = [
            i for text in bundled() if text.kind == kind for i in tokenizer.encode(text.text).ids
        ]
        found[kind] = [ids[at : at + length] for at in range(0, len(ids) - length, length)][:most]
    return found


class Attention(NamedTuple):
    """Of a text's last tokens, by layer: ``AttentionTrace``, mean over heads that share keys."""

    seen: list[AttentionTrace]
    mass: list[torch.Tensor]
    length: int


def attention(decoder: Any, ids: list[int]) -> Attention:
    """Compute a text."""
    seen: list[AttentionTrace] = []
    trace(decoder, ids, DECODED, seen.append)
    heads = decoder.spec.attention.num_kv_heads
    return Attention(
        seen, [torch.unflatten(s.weights, 0, (heads, -1)).mean(1) for s in seen], len(ids)
    )


def shape_of(decoder: Any) -> KvShape:
    """What strategies are told of a model."""
    shape: KvShape = decoder.spec.attention.kv_shape
    return shape


class Held(NamedTuple):
    """What a selection holds, of each layer, key head and step; NaN where all is attended to.

    Attributes:
        mass: attention inside it.
        looks: whether it has the one place that most is for; NaN where there is none.
    """

    mass: torch.Tensor
    looks: torch.Tensor


def is_sparse(step: int, length: int) -> bool:
    """Whether strategies attend to few of so many, with their default settings."""
    return step >= 32 and length % 16 != 0


def selected(name: str, budget: float, text: Attention, kv_shape: KvShape) -> Held:
    """What a strategy selects, served by its contract."""
    strategy = HOST.strategy(Kind.KV_COMPRESSION, name, {"budget": budget})
    target = DraftTarget(384, torch.float32)
    strategy.open(
        replace(
            engine_resources(max_running=1, max_model_len=text.length),
            kv_shape=kv_shape,
            read_heads=lambda setting, kind: read_heads(setting, kind, NANO, target, 4096, "cpu"),
        )
    )
    strategy.admit(0)
    found = torch.full((kv_shape.num_layers, kv_shape.num_kv_heads, DECODED), torch.nan)
    looks = found.clone()
    rows = np.zeros(1, np.int64)
    for step in range(DECODED):
        lengths = np.array([text.length - DECODED + step + 1])
        budgets = strategy.budgets(rows, lengths)
        for layer in range(FIRST_LAYER, kv_shape.num_layers):
            weights = text.seen[layer].weights[None, :, step, : lengths[0]]
            if not budgets[0]:
                strategy.observe(layer, rows, lengths, weights, None)
                continue
            places = strategy.select(layer, rows, lengths, budgets)
            assert places is not None
            mask = (places < 0)[:, :, None]
            by_head = torch.unflatten(weights, 1, (kv_shape.num_kv_heads, -1))
            index = places.clamp_min(0)[:, :, None].expand(-1, -1, by_head.shape[2], -1)
            few = by_head.gather(-1, index).masked_fill(mask, 0)
            held = few.sum(-1, keepdim=True)
            found[layer, :, step] = held.mean(2)[0, :, 0]
            strategy.observe(layer, rows, lengths, (few / held).flatten(1, 2), places)
            most, place = text.mass[layer][:, step].max(-1)
            is_look = (most > SHARP) & (place >= FIRST) & (place < lengths[0] - FAR)
            has = (places[0] == place[:, None]).any(-1).float()
            looks[layer, :, step] = torch.where(is_look, has, torch.nan)
    strategy.close()
    return Held(found, looks)


def known(
    text: Attention, budget: float, choose: Callable[[int, int, int, int], torch.Tensor]
) -> torch.Tensor:
    """What is held by a selection that may look at the token's own attention, or query.

    Args:
        text: its attention.
        budget: part of the places.
        choose: of layer, step, length and number of places; mass that is held by key head.
    """
    layers, heads = len(text.seen), text.mass[0].shape[0]
    found = torch.full((layers, heads, DECODED), torch.nan)
    for layer in range(layers):
        for step in range(DECODED):
            length = text.length - DECODED + step + 1
            if is_sparse(step, length):
                found[layer, :, step] = choose(layer, step, length, int(np.ceil(length * budget)))
    return found


def best_tokens(text: Attention) -> Callable[[int, int, int, int], torch.Tensor]:
    """The places with most attention: nobody can hold more."""
    return lambda layer, step, length, count: (
        text.mass[layer][:, step, :length].topk(count).values.sum(-1)
    )


def page_bounds(text: Attention) -> Callable[[int, int, int, int], torch.Tensor]:
    """Pages whose keys could score most for the query: Quest, arXiv 2406.10774."""

    def choose(layer: int, step: int, length: int, count: int) -> torch.Tensor:
        seen = text.seen[layer]
        full = length // PAGE
        keys = torch.unflatten(seen.keys[: full * PAGE], 0, (full, PAGE))
        low, high = keys.amin(1), keys.amax(1)  # [pages, kv_heads, dim]
        queries = torch.unflatten(
            seen.queries[step], 0, (low.shape[1], -1)
        )  # [kv_heads, group, dim]
        bounds = torch.maximum(
            torch.einsum("hgd,phd->hgpd", queries, low),
            torch.einsum("hgd,phd->hgpd", queries, high),
        )
        scores = bounds.sum(-1).amax(1)
        mass = text.mass[layer][:, step, :length]
        rest = mass[:, full * PAGE :].sum(-1)  # the newest page is always there
        pages = scores.topk(max(count // PAGE - 1, 1)).indices
        by_page = torch.unflatten(mass[:, : full * PAGE], -1, (full, PAGE)).sum(-1)
        return by_page.gather(1, pages).sum(-1) + rest

    return choose


def recall(most: int) -> Iterator[dict[str, Any]]:
    """Attention that is held, by all selectors with all budgets."""
    for length in LENGTHS:
        for row in recall_of(texts(length, most)):
            yield {"tokens": length} | row


def recall_of(by_kind: Texts) -> Iterator[dict[str, Any]]:
    """The same of some texts."""
    decoder = open_decoder(NANO)
    kv_shape = shape_of(decoder)
    held: dict[tuple[float, str], list[torch.Tensor]] = {}
    for ids in (ids for found in by_kind.values() for ids in found):
        text = attention(decoder, ids)
        for budget in BUDGETS:
            for name in STRATEGIES:
                one = selected(name, budget, text, kv_shape).mass
                held.setdefault((budget, name), []).append(one)
            for name, choose in (
                ("oracle, tokens", best_tokens(text)),
                ("page bounds of 16", page_bounds(text)),
            ):
                held.setdefault((budget, name), []).append(known(text, budget, choose))
    for (budget, name), ones in held.items():
        inside = torch.stack(ones)[:, FIRST_LAYER:]
        best = torch.stack(held[budget, "oracle, tokens"])
        steps = ~inside.isnan()
        ratio = inside[steps] / best[:, FIRST_LAYER:][steps]
        yield {
            "budget": budget,
            "selector": name,
            "mass": float(inside[steps].mean()),
            "mass_p5": float(inside[steps].quantile(0.05)),
            "recall": float(ratio.mean()),
            "recall_p5": float(ratio.quantile(0.05)),
        }
        if name == "oracle, tokens":
            every = best[~best.isnan()]
            yield {
                "budget": budget,
                "selector": "oracle, all layers",
                "mass": float(every.mean()),
                "mass_p5": float(every.quantile(0.05)),
                "recall": 1.0,
                "recall_p5": 1.0,
            }


def opened(name: str | None, budget: float) -> SchemeModel:
    """The embedded model, with a compression or without."""
    choice = None if name is None else StrategyChoice(name, {"budget": budget})
    config = EngineConfig(
        str(NANO),
        StrategyChoice("fcfs"),
        None,
        StrategyChoice("lru"),
        StrategyChoice("recompute"),
        kv_compression=choice,
        threads=1,
    )
    return SchemeModel(config, HOST, max(LENGTHS))


def schemes() -> Iterator[tuple[str, float]]:
    """Every strategy with every budget."""
    for name in STRATEGIES:
        for budget in BUDGETS:
            yield name, budget


def words(most: int) -> Iterator[dict[str, Any]]:
    """Perplexity, agreement and divergence where tokens are decoded one by one."""
    by_kind, begin = texts(LENGTHS[0], most), LENGTHS[0] - DECODED
    with closing(opened(None, 1.0)) as plain:
        expected = {
            kind: [torch.cat(list(plain.decoded(ids, begin))) for ids in found]
            for kind, found in by_kind.items()
        }
    for name, budget in schemes():
        with closing(opened(name, budget)) as few:
            for kind, found in by_kind.items():
                scores = Scores()
                for ids, others in zip(found, expected[kind], strict=True):
                    logits = torch.cat(list(few.decoded(ids, begin)))
                    scores.add(logits[:-1], torch.tensor(ids[begin + 1 :]), others[:-1])
                figures = scores.figures()
                yield {
                    "strategy": name,
                    "budget": budget,
                    "kind": kind,
                    "perplexity": figures.perplexity,
                    "plain": figures.reference_perplexity,
                    "agreement": figures.agreement,
                    "kl": figures.kl_mean,
                }


SHARP, FIRST, FAR = 0.2, 4, 64
"""A look at one place: it has more than this part, and is neither among the first nor near."""


def looks(most: int) -> Iterator[dict[str, Any]]:
    """Looks at one place far away, which are what finds a needle: how many of them find it.

    nano itself repeats no words that it does not know, so there is no other needle for it.
    """
    decoder = open_decoder(NANO)
    kv_shape = shape_of(decoder)
    seen = [attention(decoder, ids) for each in texts(LENGTHS[0], most).values() for ids in each]
    for name, budget in schemes():
        found = torch.stack([selected(name, budget, text, kv_shape).looks for text in seen])
        count = int((~found.isnan()).sum())
        yield {
            "strategy": name,
            "budget": budget,
            "looks": count,
            "found": float(found.nanmean()),
        }


PARTS: dict[str, Callable[[int], Iterator[dict[str, Any]]]] = {
    "recall": recall,
    "words": words,
    "looks": looks,
}


def main() -> None:
    """Run the parts and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--texts", type=int, default=4, help="of each kind, at most 4")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for part in options.part or PARTS:
        rows = list(PARTS[part](options.texts))
        if options.json:
            print(json.dumps({part: rows}))
            continue
        print(f"\n{part}")
        print("| " + " | ".join(rows[0]) + " |\n|" + " --- |" * len(rows[0]))
        for row in rows:
            cells = (f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values())
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
