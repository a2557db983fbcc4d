"""KV compression quality: tokens, bytes and reads equal those of an engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quality.evaluate import measure
from gatewayd_engine.offline.quality.job import (
    Event,
    QualityJob,
    QualityScheme,
    Sample,
    SchemeMeasured,
    SchemeUnusable,
)
from gatewayd_engine.offline.quality.scheme_model import CHUNK, SchemeModel
from gatewayd_engine.process.config import EngineConfig, EngineConfigError, StrategyChoice
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.kv_compression import Compacted
from gatewayd_kvc_heavy.strategy import Heavy
from gatewayd_kvc_matching.strategy import Matching
from tests.engine.core.conftest import CATALOG, build
from tests.engine.core.small_model import small

HOST = PluginHost(CATALOG)
RANDOM = random.Random(5)
PROMPT = [RANDOM.randrange(5, 4096) for _ in range(180)]
LENGTH = 40
NETWORK = str(embedded.folder("nano").with_name("nano-predictor"))
SOON = {"at_least": 16, "warm_steps": 3, "every": 7, "dense_layers": 1, "budget": 0.1}
COMPRESSIONS = {
    "heavy": StrategyChoice("heavy", SOON),
    "predictor": StrategyChoice("predictor", {**SOON, "network": NETWORK}),
    "matching": StrategyChoice(
        "matching", {"at_least": 64, "recent": 4, "queries": 16, "ratio": 40}
    ),
}
CONFIG = EngineConfig(
    model=str(small()),
    scheduler=StrategyChoice("fcfs"),
    prefix_cache=None,
    eviction=StrategyChoice("lru"),
    preemption=StrategyChoice("recompute"),
    threads=1,
)


def config(name: str, **changes: Any) -> EngineConfig:
    return msgspec.structs.replace(CONFIG, kv_compression=COMPRESSIONS[name], **changes)


def told(sample: Sample, *schemes: EngineConfig) -> list[Any]:
    events: list[Event] = []
    job = QualityJob(
        QualityScheme("all", CONFIG),
        [QualityScheme(str(i), one) for i, one in enumerate(schemes)],
        [sample],
    )
    measure(job, HOST, events.append)
    return [event for event in events if isinstance(event, SchemeMeasured | SchemeUnusable)]


@pytest.mark.parametrize("codec", [None, "int8"])
@pytest.mark.parametrize("name", COMPRESSIONS)
def test_each_token_is_the_one_that_an_engine_says(name: str, codec: str | None) -> None:
    choice = None if codec is None else StrategyChoice(codec)
    engine = build(small(), prefix_cache=None, kv_compression=COMPRESSIONS[name], kv_codec=choice)
    plain = build(small(), prefix_cache=None, kv_codec=choice)
    answer = engine.generate(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    assert answer != plain.generate(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    engine.core.strategies.close()
    plain.core.strategies.close()
    ids = PROMPT + answer
    with closing(SchemeModel(config(name, kv_codec=choice), HOST, len(ids))) as opened:
        blocks = list(opened.logits(ids, len(PROMPT)))
    said = torch.cat(blocks).argmax(-1).tolist()
    assert said[:-1] == answer[1:]


def test_bytes_are_those_that_an_engine_holds() -> None:
    engine = build(small(), prefix_cache=None, kv_compression=COMPRESSIONS["matching"])
    engine.submit(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    while engine.core.stats.held_pages == 0 or engine.core.stats.held_pages > 8:
        engine.step()
    held = engine.core.stats.held_pages
    engine.run()
    engine.core.strategies.close()
    with closing(SchemeModel(config("matching"), HOST, 256)) as opened:
        whole = opened.kv_bytes_per_token
        list(opened.logits([*PROMPT, 7], len(PROMPT)))
        assert opened.kv_bytes_per_token / whole == held / -(-(len(PROMPT) + 1) // 16)
        assert opened.kv_read == opened.kv_bytes_per_token / whole


def test_reads_are_the_places_that_are_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    there, read = 0, 0
    select = Heavy.select

    def noted(self: Any, layer: int, rows: Any, lengths: Any, budgets: Any) -> Any:
        nonlocal read
        places = select(self, layer, rows, lengths, budgets)
        if places is not None:
            read += int((places >= 0).sum()) - 2 * int(lengths[0])
        return places

    monkeypatch.setattr(Heavy, "select", noted)
    ids = PROMPT + PROMPT[:LENGTH]
    with closing(SchemeModel(config("heavy"), HOST, len(ids))) as opened:
        list(opened.logits(ids, len(PROMPT)))
        # Two layers of two heads each.
        there = 2 * 2 * sum(range(len(PROMPT) + 1, len(ids) + 1))
        assert opened.kv_read == pytest.approx((there + read) / there)
        assert opened.kv_read is not None
        assert opened.kv_read < 0.7


@pytest.mark.parametrize("decoded", [3, 0])
def test_a_last_chunk_of_one_token_is_not_decoded(
    decoded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    budgets = Heavy.budgets

    def noted(self: Any, rows: Any, lengths: Any) -> Any:
        asked.extend(lengths.tolist())
        return budgets(self, rows, lengths)

    monkeypatch.setattr(Heavy, "budgets", noted)
    begin = CHUNK + 1
    ids = (PROMPT * 4)[: begin + decoded]
    with closing(SchemeModel(config("heavy"), HOST, len(ids))) as opened:
        for _ in range(2):
            asked.clear()
            list(opened.logits(ids, begin if decoded else 0))
            assert asked == list(range(begin + 1, len(ids) + 1))


def test_only_what_follows_the_prompt_is_counted_and_compared_with_the_whole() -> None:
    text = (PROMPT * 4)[:640]
    sample = Sample("text", text, 480)
    plain, few = told(sample, CONFIG, config("matching"))
    assert plain.kinds["text"].tokens == few.kinds["text"].tokens == 640 - 480 - 1
    assert plain.kinds["text"].kl_mean == 0
    assert plain.kv_read is None
    assert few.kinds["text"].reference_perplexity == plain.kinds["text"].perplexity
    assert few.kinds["text"].kl_mean > 1e-4
    assert few.kv_bytes_per_token < 0.6 * plain.kv_bytes_per_token
    whole = Sample("text", text)
    (all_of_it,) = told(whole, CONFIG)
    assert all_of_it.kinds["text"].tokens == 639


def test_prompts_are_long_enough_unless_the_settings_say_themselves() -> None:
    sample = Sample("text", PROMPT + PROMPT[:60], 180)
    mine = StrategyChoice("matching", {"at_least": 1000})
    fitted, kept = told(
        sample,
        msgspec.structs.replace(CONFIG, kv_compression=StrategyChoice("matching")),
        msgspec.structs.replace(CONFIG, kv_compression=mine),
    )
    assert fitted.note.startswith(
        "at_least is 1024 by default, more than these prompts have: it was"
    )
    assert fitted.kv_read < 1
    assert kept.kv_read == 1
    assert kept.kinds["text"].kl_mean == pytest.approx(0, abs=1e-6)
    assert kept.note.startswith("it has changed nothing")


def _raises(*args: Any) -> Any:
    raise ArithmeticError("not today")


@pytest.mark.parametrize(
    ("strategy", "method", "broken", "sentence"),
    [
        (Heavy, "select", _raises, "not today"),
        (Heavy, "select", lambda self, layer, rows, *rest: torch.zeros(1, 2, 5).long(), "twice"),
        (Matching, "plan", _raises, "not today"),
        (Matching, "compact", lambda self, i, q, k, v, n: Compacted(k, k[..., 0], v), "have shape"),
    ],
)
def test_one_that_is_broken_is_told_and_not_made_up_for(
    monkeypatch: pytest.MonkeyPatch,
    strategy: type,
    method: str,
    broken: Callable[..., Any],
    sentence: str,
) -> None:
    monkeypatch.setattr(strategy, method, broken)
    sample = Sample("text", PROMPT + PROMPT[:30], 180)
    (found,) = told(sample, config(strategy.__name__.lower()))
    assert isinstance(found, SchemeUnusable)
    assert sentence in found.reason


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_one_that_does_not_open_is_closed(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    ended: list[Any] = []

    def failing(self: Any, resources: Any) -> None:
        begun.append(self)
        raise error("not today")

    monkeypatch.setattr(Heavy, "open", failing)
    monkeypatch.setattr(Heavy, "close", lambda self: ended.append(self))
    with pytest.raises(EngineConfigError if error is ValueError else error, match="not today"):
        SchemeModel(config("heavy"), HOST, 64)
    assert len(begun) == 1
    assert ended == begun


def test_what_a_model_cannot_have_is_said(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    model = str(make_checkpoint(tmp_path, "gemma2"))
    sample = Sample("text", [5] * 60, 40)
    events: list[Event] = []
    scheme = QualityScheme("0", config("matching", model=model))
    measure(QualityJob(None, [scheme], [sample]), HOST, events.append)
    (found,) = events
    assert isinstance(found, SchemeUnusable)
    assert "softcap" in found.reason
