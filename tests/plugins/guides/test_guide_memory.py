"""Guide memory: growth by matching is freed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

from gatewayd_engine.process.config import GuideLimits, StrategyChoice
from gatewayd_engine.sampling.guides.compiler import CompiledGrammar, GrammarCompiler, Guide
from gatewayd_guide_llguidance import lexers
from gatewayd_guide_llguidance.config import LlguidanceConfig
from gatewayd_guide_llguidance.strategy import Llguidance
from gatewayd_hooks.guiding import GuideSpec
from tests.plugins.guides.guides import ENDS, allowed, opened

_ROOT = Path(__file__).parents[3]
_KEPT_MIB = 64

_FOLLOWED = """
import random, time
from gatewayd_engine.process.config import GuideLimits, StrategyChoice
from gatewayd_engine.sampling.guides.compiler import GrammarCompiler, Guide
from gatewayd_guide_llguidance.config import LlguidanceConfig
from gatewayd_guide_llguidance.strategy import Llguidance
from gatewayd_hooks.guiding import GuideFailed, GuideSpec
from tests.plugins.guides.guides import ENDS, allowed, opened

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

def follow(matcher, draw, count):
    try:
        for _ in range(count):
            matcher.accept([draw.choice(sorted(allowed(matcher)))])
    except GuideFailed:
        pass

def compiled(compiler, spec, guide):
    one = compiler.request(spec, guide)
    while not one.is_settled:
        compiler.review()
        time.sleep(0.001)
    return one

with opened(Llguidance(LlguidanceConfig())) as strategy:
    compiler, guide = GrammarCompiler(GuideLimits()), Guide(StrategyChoice("llguidance"), strategy)
    draw, most = random.Random(0), 0
    began = rss()
    for i in range(COUNT):
        spec = GuideSpec(FORM, TEXT.replace("#", str(i)))
        one = compiled(compiler, spec, guide)
        matcher = one.start()
        follow(matcher, draw, TOKENS)
        most = max(most, rss() - began)
        del one, matcher
    end = time.monotonic() + 20
    while rss() - began > KEPT and time.monotonic() < end:
        time.sleep(0.05)
    print(most, rss() - began)
"""


class _Weighed:
    """A guide whose grammars take as many MiB as their text says."""

    def compile(self, spec: GuideSpec) -> Any:
        return SimpleNamespace(num_bytes=int(spec.text) << 20)


def test_an_engine_lets_go_those_that_were_asked_for_longest_ago() -> None:
    guide = Guide(StrategyChoice("weighed"), _Weighed())
    compiler = GrammarCompiler(GuideLimits())

    def want(text: str) -> CompiledGrammar:
        one = compiler.request(GuideSpec("regex", text), guide)
        deadline = time.monotonic() + 30
        while not one.is_settled and time.monotonic() < deadline:
            compiler.review()
        return one

    known = {text: ref(want(text)) for text in ("30", "20", "10", "1")}
    assert all(one() for one in known.values())
    grown: Any = want("1").grammar
    grown.num_bytes = 40 << 20
    assert want("20") is known["20"]()
    want("2")
    assert [text for text, one in known.items() if one()] == ["20", "1"]
    followed = known["1"]()
    want("63")
    assert want("1") is followed, "who comes while it is followed shares it"


def _grown(count: int, tokens: int, spec: GuideSpec, kept: float) -> tuple[float, float]:
    """MiB that a process has grown by: at most, and in the end.

    Args:
        count: of grammars, each followed by one sequence and then by none.
        tokens: of each.
        spec: of each, where # stands for its number.
        kept: MiB for which it waits in the end, as they are freed beside it.
    """
    values = {"COUNT": count, "TOKENS": tokens, "FORM": spec.form, "TEXT": spec.text, "KEPT": kept}
    done = subprocess.run(
        [sys.executable, "-c", "".join(f"{k} = {v!r}\n" for k, v in values.items()) + _FOLLOWED],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    most, end = map(float, done.stdout.split())
    return most, end


def test_what_has_grown_large_goes_with_its_last_follower() -> None:
    """Each takes some 20 MiB while it is followed."""
    most, end = _grown(8, 60, GuideSpec("regex", "x#[a-z ]*[a-m][a-z ]{22}c#"), 15)
    assert 10 < most < 80
    assert end < 16


def test_what_grows_a_little_is_kept_within_the_bound() -> None:
    """Each takes some 5 MiB, of states that are put together of others."""
    letters = "aeiotnrs"
    rules = [f"L{i}: /([^{c}0-9]*{c}){{50}}{i}#/" for i, c in enumerate(letters)]
    start = f"start: ({' | '.join(f'L{i}' for i in range(len(letters)))})*"
    most, end = _grown(40, 10, GuideSpec("grammar", "\n".join([start, *rules])), 1000)
    assert 20 < end <= most < _KEPT_MIB + 16


@pytest.mark.parametrize(
    ("text", "tokens", "least", "most"),
    [("[a-z]*", 1600, 5, 10), ("[a-z ]*[a-m][a-z ]{22}c", 64, 3, 4)],
)
def test_what_does_not_grow_is_seldom_weighed(
    text: str, tokens: int, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than a mask."""
    weighed: list[int] = []
    sound = lexers._burnt_by

    def burnt_by(matcher: Any) -> int:
        weighed.append(sound(matcher))
        return weighed[-1]

    draw = random.Random(0)
    with opened(Llguidance(LlguidanceConfig())) as strategy:
        matcher: Any = strategy.compile(GuideSpec("regex", text)).start()
        monkeypatch.setattr(lexers, "_burnt_by", burnt_by)
        for _ in range(tokens):
            matcher.accept([draw.choice(sorted(set(allowed(matcher)) - set(ENDS)))])
        assert least <= len(weighed) <= most
