"""Watermark in the engine: detected in every answer, with its tenant's key alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd.text.tokenizer import Tokenizer
from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_logits_watermark.config import WatermarkConfig
from gatewayd_logits_watermark.detector import MarkDetector, detect
from tests.engine.core.prompts import PROMPTS

Make = Callable[..., Any]
Asked = tuple[str, str, int]
"""Settings, tenant, prompt."""

SECRET = "a secret of sixteen and more"
TENANTS = ("", "acme")
NEW = 200
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "temperature 0.5": {"temperature": 0.5},
    "top-k": {"temperature": 1.0, "top_k": 20},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "min-p": {"temperature": 1.0, "min_p": 0.1},
    "penalties": {
        "temperature": 1.0,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
    },
    "bias": {"temperature": 1.0, "logit_bias": [(i, -100.0) for i in range(3)], "min_tokens": 150},
}
# Some that nano knows by heart, where a mark is hardest, and some that it does not.
TEXTS = (
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nDescribe bisect.bisect_left as JSON.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
    "import os\n\nclass Cache:\n",
    "The quick brown fox",
)


def chain(*more: str) -> list[StrategyChoice]:
    built_in = [StrategyChoice(name) for name in ("penalties", "bias", "min_tokens")]
    return [*built_in, *(StrategyChoice(name, {"secret": SECRET}) for name in more)]


def answers_of(engine: Any, texts: tuple[str, ...] = TEXTS) -> dict[Asked, list[int]]:
    """Answers to every text with all settings for all tenants."""
    tokenizer = Tokenizer.from_folder(embedded.folder("nano"))
    prompts = [tokenizer.encode(text, trusted=True) for text in texts]
    asked = {}
    for name, settings in SETTINGS.items():
        for tenant in TENANTS:
            for i, prompt in enumerate(prompts):
                (asked[name, tenant, i],) = engine.submit(
                    prompt, max_tokens=NEW, ignore_eos=True, tenant=tenant, seed=i, **settings
                )
    done = engine.run()
    return {key: done[sequence].tokens for key, sequence in asked.items()}


@pytest.fixture(scope="module")
def detector() -> MarkDetector:
    return MarkDetector(WatermarkConfig(secret=SECRET))


@pytest.mark.parametrize(
    ("drafter", "texts"),
    [(None, TEXTS[1:3]), ("ngram", TEXTS[:1]), pytest.param(None, TEXTS, marks=pytest.mark.slow)],
)
def test_every_answer_of_200_tokens_is_marked_for_its_tenant_alone(
    make_engine: Make, detector: MarkDetector, drafter: str | None, texts: tuple[str, ...]
) -> None:
    engine = make_engine(
        logits_processors=chain("watermark"),
        kv_pages=2048,
        max_running=80,
        drafter=drafter and StrategyChoice(drafter),
    )
    strangers = 0
    for (settings, tenant, prompt), tokens in answers_of(engine, texts).items():
        assert len(tokens) == NEW
        found = detector.detect(tokens, tenant)
        assert found.z >= 4.0, (settings, tenant, prompt, found)
        assert found.is_marked is True
        for other in {*TENANTS, "stranger"} - {tenant}:
            strangers += detector.detect(tokens, other).z >= 4.0
    assert strangers == 0


def test_unmarked_answers_look_so_to_every_key(make_engine: Make) -> None:
    engine = make_engine(logits_processors=chain(), kv_pages=2048, max_running=80)
    answers = answers_of(engine, TEXTS[1:3])
    z = [
        detect(tokens, bytes([key] * 32), 0.25, 1).z
        for tokens in answers.values()
        for key in range(100)
    ]
    assert len(z) == 3200
    assert sum(one >= 4.0 for one in z) / len(z) <= 1e-3


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_marked_answers_stay_the_same(make_engine: Make, temperature: float) -> None:
    """With preemptions, from the prefix cache, and with drafts.

    They are long enough that marks have grown stronger before the sequences make room.
    """

    def ask(engine: Any) -> list[list[int]]:
        options: dict[str, Any] = {"max_tokens": 80, "ignore_eos": True, "tenant": "acme"}
        asked = [
            engine.submit(prompt, temperature=temperature, seed=i, **options)[0]
            for i, prompt in enumerate(PROMPTS)
        ]
        done = engine.run()
        return [done[i].tokens for i in asked]

    def make(**fields: Any) -> Any:
        return make_engine(logits_processors=chain("watermark"), **fields)

    calm = ask(make(prefix_cache=None))
    crowded = make(page_size=2, kv_pages=200, prefix_cache=None)
    assert ask(crowded) == calm
    assert crowded.core.stats.preemptions > 0
    caching = make(page_size=4)
    assert [ask(caching), ask(caching)] == [calm, calm]
    assert caching.core.stats.prefix_hits > 0
    drafting = make(drafter=StrategyChoice("ngram"))
    assert ask(drafting) == calm
    for engine in (crowded, caching, drafting):
        assert engine.core.stats.faults == 0


def test_a_wish_that_cannot_be_is_the_requests_fault(make_engine: Make) -> None:
    engine = make_engine(logits_processors=chain("watermark"))
    (sequence,) = engine.submit(PROMPTS[0], max_tokens=3, extra={"watermark": False})
    error = engine.run()[sequence].finished.error
    sentence = "extra_args.watermark is false; this server marks every answer"
    assert error == ("invalid_request", sentence)
    assert engine.core.stats.faults == 0
