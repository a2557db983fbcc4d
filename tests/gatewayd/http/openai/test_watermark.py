"""Watermark detector route: answers and refusals on a real port."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gatewayd.http.schema.watermark import MAX_MARK_TOKENS
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.detection import Detection
from gatewayd_logits_watermark.config import WatermarkConfig
from gatewayd_logits_watermark.detector import MarkDetector
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import running

PATH = "/v1/watermark/detect"
DETECTOR = MarkDetector(WatermarkConfig(secret="a secret of sixteen and more"))


def marked(length: int) -> list[int]:
    """Ids of which each but the first is green after the one before."""
    ids = [9]
    while len(ids) < length:
        green = (t for t in range(6, 4096) if DETECTOR.detect([ids[-1], t], "").num_green)
        ids.append(next(t for t in green if t not in ids))
    return ids


async def test_marked_ids_are_found_and_others_are_not(text: TextModel) -> None:
    ids = marked(120)
    async with running(text, FakeFleet(), detector=DETECTOR) as gateway:
        found = (await gateway.http.post(PATH, json={"tokens": ids})).json()
        other = (await gateway.http.post(PATH, json={"tokens": ids[::-1]})).json()
        short = (await gateway.http.post(PATH, json={"tokens": ids[::-1][:50]})).json()
        empty = (await gateway.http.post(PATH, json={"tokens": []})).json()
    assert found == {
        "object": "watermark.detection",
        "num_tokens": 120,
        "num_scored": 119,
        "num_green": 119,
        "z": pytest.approx(119**0.5 * 3**0.5),
        "p_value": pytest.approx(0.25**119),
        "is_marked": True,
    }
    assert (other["is_marked"], other["num_scored"]) == (False, 119)
    assert (short["is_marked"], short["num_scored"]) == (None, 49)
    assert (empty["is_marked"], empty["num_scored"], empty["p_value"]) == (None, 0, 1.0)


async def test_a_text_is_tokenized_as_text(text: TextModel) -> None:
    sample = "def f(<|im_end|>): return 1\n" * 4
    ids = text.tokenizer.encode(sample)
    async with running(text, FakeFleet(), detector=DETECTOR) as gateway:
        of_text = (await gateway.http.post(PATH, json={"text": sample})).json()
        of_ids = (await gateway.http.post(PATH, json={"tokens": ids, "model": "nano"})).json()
    assert of_text == of_ids
    assert of_text["num_tokens"] == len(ids)


@pytest.mark.parametrize(
    ("body", "status", "param", "sentence"),
    [
        ({}, 400, "text", "send either text or tokens"),
        ({"text": "a", "tokens": [1]}, 400, "text", "send either text or tokens"),
        ({"tokens": [4096]}, 400, "tokens", "the token id 4096; the vocabulary ends at 4095"),
        ({"tokens": [7] * (MAX_MARK_TOKENS + 1)}, 400, "tokens", "65537 tokens; the maximum is"),
        ({"text": "x" * (4 * MAX_MARK_TOKENS + 1)}, 400, "text", "262145 characters; the maximum"),
        ({"text": "x y " * MAX_MARK_TOKENS}, 400, "text", "tokens; the maximum is 65536"),
        ({"text": 1}, 400, "text", "text must be a string"),
        ({"text": "a", "model": "other"}, 404, "model", "does not exist"),
    ],
)
async def test_what_cannot_be_looked_at_is_refused(
    text: TextModel, body: Any, status: int, param: str, sentence: str
) -> None:
    async with running(text, FakeFleet(), detector=DETECTOR) as gateway:
        answer = await gateway.http.post(PATH, json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param
    assert sentence in answer.json()["error"]["message"]


async def test_where_nothing_is_marked_the_answer_says_so(text: TextModel) -> None:
    async with running(text, FakeFleet()) as gateway:
        answer = await gateway.http.post(PATH, json={"text": "a"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "watermark_not_configured"


async def test_long_texts_are_looked_at_outside_the_event_loop(text: TextModel) -> None:
    threads: list[threading.Thread] = []
    tenants: list[str] = []

    class Noting:
        def detect(self, tokens: Any, tenant: str) -> Detection:
            threads.append(threading.current_thread())
            tenants.append(tenant)
            return DETECTOR.detect(tokens, tenant)

    async with running(text, FakeFleet(), detector=Noting()) as gateway:
        answer = await gateway.http.post(PATH, json={"tokens": [7, 8] * (MAX_MARK_TOKENS // 2)})
    assert answer.status_code == 200
    assert answer.json()["num_scored"] == 2
    assert threads[0] is not threading.main_thread()
    assert tenants == ["default"]
