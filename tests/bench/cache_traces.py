"""Benchmark: prefix cache and eviction hit rates on synthetic traces, against Belady's optimum.

The strategies and the page accounts are the engine's; there is no model, and requests run one
after the other. Three traces, the same at every run:

- *zipf*: documents of 4 to 40 pages, asked about with Zipf's popularity, each time with a question
  of its own. Belady's optimum gives up the page whose next use is farthest.
- *multi-turn*: conversations side by side, each turn with all that was said before.
- *RAG*: a system prompt, three documents by popularity in the order of their rank, a question.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_hooks.caching import Match, PageOrigin
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plan import bind
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.fakes import engine_resources
from tests.bench import report

PAGE = 16
CACHES = ("hash", "radix")
EVICTIONS = ("lru", "lfu", "cost", "retention")
MOST_POINTS_BEHIND = 15
Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Request:
    """What the engine computes for one request.

    Attributes:
        prompt: ids.
        answer: ids that follow; its pages are cached too.
        document: of the Zipf trace; its pages are all but the last one of the prompt.
    """

    prompt: Ids
    answer: Ids
    document: int = -1


class Simulation:
    """The accounts of a pool, with the strategies of these names."""

    def __init__(self, cache: str, eviction: str, num_pages: int) -> None:
        host = PluginHost(Catalog.installed())
        resources = engine_resources(page_size=PAGE, num_pages=num_pages)
        opened: dict[Kind, Any] = {}
        for kind, name in ((Kind.PREFIX_CACHE, cache), (Kind.EVICTION, eviction)):
            opened[kind] = host.strategy(kind, name, {})
            opened[kind].open(resources)
        unasked: Any = SimpleNamespace(plan=None, enqueue=None, dequeue=None, victim=None)
        self._cache = opened[Kind.PREFIX_CACHE]
        plan = bind(
            scheduler=unasked,
            prefix_cache=self._cache,
            eviction=opened[Kind.EVICTION],
            preemption=unasked,
            processors=(),
        )
        self._pages = Pages(num_pages, plan)

    def serve(self, request: Request) -> int:
        """Run a request; gives the tokens of its prompt that were cached."""
        most = len(request.prompt) - 1
        trail = self._cache.begin(request.prompt, b"")
        found = self._cache.match(trail)
        if not isinstance(found, Match):
            found = Match(found, min(len(found), most // PAGE) * PAGE)
        cached = min(found.num_tokens, most)
        pages = [int(page) for page in found.pages[: -(-cached // PAGE)]]
        for page in pages:
            self._pages.share(page)
        if cached % PAGE:
            source = pages.pop()
            pages.append(self._pages.allocate())
            self._pages.release([source])
        # The last token of an answer is not computed.
        tokens = np.concatenate((request.prompt, request.answer[:-1]))
        while len(pages) * PAGE < len(tokens):
            pages.append(self._pages.allocate())
        full = len(tokens) // PAGE
        known = self._cache.insert(trail, tokens[: full * PAGE], np.array(pages[:full], np.int32))
        self._pages.mark_known(known)
        for depth, page in enumerate(pages[:full]):
            if page in known:
                self._pages.record_origin(
                    page, PageOrigin(pages[depth - 1] if depth else -1, depth)
                )
        self._pages.release(pages[::-1])
        return cached


def hit_rate(trace: list[Request], cache: str, eviction: str, num_pages: int) -> float:
    """The share of prompt tokens that were cached."""
    simulation = Simulation(cache, eviction, num_pages)
    hits = sum(simulation.serve(request) for request in trace)
    return hits / sum(len(request.prompt) for request in trace)


def optimal_hit_rate(trace: list[Request], num_pages: int) -> float:
    """Belady's: whenever a page is needed, that whose next use is farthest is given up.

    A document's pages are used together, so its last ones go first, and those of questions, which
    never come again, before all others.
    """
    later: dict[int, list[int]] = {}
    for time in range(len(trace) - 1, -1, -1):
        later.setdefault(trace[time].document, []).append(time)
    cached: dict[int, int] = {}
    hits = 0
    for request in trace:
        later[request.document].pop()
        hits += cached.get(request.document, 0) * PAGE
        cached[request.document] = len(request.prompt) // PAGE - 1
        over = sum(cached.values()) + 1 - num_pages
        others = [document for document in cached if document != request.document]
        others.sort(key=lambda d: later[d][-1] if later[d] else len(trace))
        while over > 0:
            farthest = others.pop()
            gone = min(over, cached[farthest])
            cached[farthest] -= gone
            over -= gone
    return hits / sum(len(request.prompt) for request in trace)


def popular(draw: Random, count: int) -> Iterator[int]:
    """Endlessly many of ``count`` things, the k-th with a chance in proportion to 1 / k."""
    weights = [1 / rank for rank in range(1, count + 1)]
    while True:
        yield from draw.choices(range(count), weights, k=256)


def ids(draw: Random, count: int) -> Ids:
    """Tokens of which no two sequences share a run by chance."""
    return np.array([draw.randrange(2**31) for _ in range(count)], np.int32)


def zipf(requests: int, documents: int = 200, seed: int = 1) -> list[Request]:
    """Questions about documents."""
    draw = Random(seed)
    texts = [ids(draw, PAGE * draw.randrange(4, 41)) for _ in range(documents)]
    asked = popular(draw, documents)
    return [
        Request(np.concatenate((texts[which], ids(draw, PAGE))), ids(draw, 1), which)
        for which, _ in zip(asked, range(requests), strict=False)
    ]


def multi_turn(
    conversations: int, turns: int = 6, at_once: int = 12, seed: int = 2
) -> list[Request]:
    """Turns of conversations, some of which go on at the same time."""
    draw = Random(seed)
    system = ids(draw, 150)
    going: list[tuple[Ids, int]] = []
    trace: list[Request] = []
    while conversations or going:
        if conversations and len(going) < at_once:
            going.append((system, turns))
            conversations -= 1
            continue
        history, left = going.pop(draw.randrange(len(going)))
        prompt = np.concatenate((history, ids(draw, draw.randrange(15, 120))))
        answer = ids(draw, draw.randrange(30, 250))
        trace.append(Request(prompt, answer))
        if left > 1:
            going.append((np.concatenate((prompt, answer)), left - 1))
    return trace


def rag(requests: int, documents: int = 60, seed: int = 3) -> list[Request]:
    """Questions that bring documents along, the most popular one first."""
    draw = Random(seed)
    system = ids(draw, 210)
    texts = [ids(draw, draw.randrange(150, 500)) for _ in range(documents)]
    found = popular(draw, documents)
    trace = []
    for _ in range(requests):
        chosen: set[int] = set()
        while len(chosen) < 3:
            chosen.add(next(found))
        parts = [system, *(texts[which] for which in sorted(chosen)), ids(draw, 30)]
        trace.append(Request(np.concatenate(parts), ids(draw, 60)))
    return trace


def pages_of(trace: list[Request]) -> int:
    """Pages that hold everything a trace computes, each prompt for itself."""
    return sum(-(-(len(r.prompt) + len(r.answer)) // PAGE) for r in trace)


def main() -> int:
    """Compare the strategies on all traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    findings = []
    trace = zipf(6000)
    for num_pages in (800, 1600):
        best = 100 * optimal_hit_rate(trace, num_pages)
        for cache in CACHES:
            for eviction in EVICTIONS:
                rate = 100 * hit_rate(trace, cache, eviction, num_pages)
                findings.append(
                    report.Finding(
                        f"zipf, {num_pages} pages: {cache}, {eviction}: hits {rate:.1f} %, "
                        f"optimum {best:.1f} %",
                        "points behind",
                        best - rate,
                        MOST_POINTS_BEHIND,
                        "at most",
                        1.0,
                        sign="<=",
                    )
                )
    for name, trace, num_pages in (
        ("multi-turn", multi_turn(150), 1000),
        ("RAG", rag(1500), 1000),
    ):
        for cache in CACHES:
            all_kept = 100 * hit_rate(trace, cache, "lru", pages_of(trace))
            for eviction in EVICTIONS:
                rate = 100 * hit_rate(trace, cache, eviction, num_pages)
                findings.append(
                    report.Finding(
                        f"{name}, {num_pages} pages: {cache}, {eviction}",
                        "% of prompt tokens saved",
                        rate,
                        all_kept,
                        "nothing evicted",
                    )
                )
    title = "Prompt tokens found in the cache, simulated"
    return report.publish(title, where, findings, as_json=args.json, strict=args.strict, details={})


if __name__ == "__main__":
    sys.exit(main())
