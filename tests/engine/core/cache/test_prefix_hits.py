"""Prefix hit counts per page: equal an oracle over the prompts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.kv.page_tree import NO_PARENT
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.inspect_messages import Browse
from tests.engine.core.tiered_engines import evict_all

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
SIZE = 16


def column(data: bytes) -> list[int]:
    found: list[int] = np.frombuffer(data, np.int32).tolist()
    return found


def hits(engine: Any) -> dict[tuple[int, ...], int]:
    """Of each cached beginning, by its tokens, browsed level by level."""
    found: dict[tuple[int, ...], int] = {}
    ahead: list[tuple[int, tuple[int, ...]]] = [(NO_PARENT, ())]
    while ahead:
        parent, before = ahead.pop()
        level = engine.core.inspect(Browse(1, parent, 1000))
        for page, tokens, count in zip(
            column(level.pages), level.tokens, column(level.hits), strict=True
        ):
            path = (*before, *column(tokens))
            assert path not in found
            found[path] = count
            ahead.append((page, path))
    return found


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_what_each_request_found_is_counted_once(make_engine: Make, cache: str) -> None:
    engine = make_engine(kv_pages=512, max_running=3, prefix_cache=StrategyChoice(cache))
    rng, wanted = random.Random(7), Counter[tuple[int, ...]]()
    parts = Counter[tuple[int, ...]]()  # what was found that ends within a page
    trunks = [[500 + 40 * k + i for i in range(70)] for k in range(3)]
    for _ in range(20):
        prompts: dict[int, list[int]] = {}
        for _ in range(rng.randint(1, 4)):
            begin = rng.choice(trunks)[: rng.randint(3, 70)]
            prompt = [*begin, *[rng.randrange(50, 53) for _ in range(rng.randint(1, 20))]]
            first, *_ = engine.submit(
                prompt, n=rng.choice([1, 1, 3]), max_tokens=2, ignore_eos=True
            )
            prompts[first] = prompt
        cached: dict[int, int] = {}
        while engine.core.has_work:
            for one in engine.step().admitted:
                cached.setdefault(one.sequence, one.cached_tokens)
        for sequence, prompt in prompts.items():
            count = cached[sequence]
            wanted.update(tuple(prompt[:end]) for end in range(SIZE, count + 1, SIZE))
            if count % SIZE:
                parts[tuple(prompt[:count])] += 1
    told = hits(engine)
    assert wanted.keys() <= told.keys()
    more = {path: count - wanted[path] for path, count in told.items() if count != wanted[path]}
    assert sum(wanted.values()) > 20
    assert parts
    # A page of which a part was found is one that goes on as the prompt did.
    assert sum(more.values()) == sum(parts.values())
    for path, count in more.items():
        depth = (len(path) - 1) // SIZE * SIZE
        ends = [part for part in parts if depth < len(part) and path[: len(part)] == part]
        assert 0 < count <= sum(parts[part] for part in ends)


def test_a_page_that_was_given_up_begins_anew(make_engine: Make) -> None:
    engine, prompt = make_engine(kv_pages=24), list(range(300, 340))
    for _ in range(3):
        engine.generate(prompt, max_tokens=1)
    assert hits(engine)[tuple(prompt[:SIZE])] == 2
    evict_all(engine)
    assert hits(engine) == {}
    engine.generate(prompt, max_tokens=1)
    assert set(hits(engine).values()) == {0}
    engine.generate(prompt, max_tokens=1)
    assert hits(engine)[tuple(prompt[:SIZE])] == 1
