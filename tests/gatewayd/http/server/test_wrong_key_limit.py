"""Wrong key limit: slows each address's wrong keys and never right ones."""

from __future__ import annotations

import random

import httpx
import pytest

from gatewayd.http.server import wrong_key_limit
from gatewayd.http.server.wrong_key_limit import FREE, WrongKeyLimiter
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, running

KEY = "gw_test_0123456789"


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_time_doubles_with_each_wrong_key_behind_the_free_ones() -> None:
    clock = Clock()
    one = WrongKeyLimiter(clock)
    assert FREE == 10, "docs and the changelog say so"
    assert [one.record_wrong_key("10.0.0.1") for _ in range(10)] == [0.0] * 10
    waits = []
    for _ in range(11):
        waits.append(one.record_wrong_key("10.0.0.1"))
        clock.now += waits[-1] / 2
        assert one.record_wrong_key("10.0.0.1") == pytest.approx(waits[-1] / 2), (
            "those within cost no more"
        )
        clock.now += waits[-1] / 2
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert one.record_wrong_key("10.0.0.2") == 0.0
    clock.now += 300 + 901
    assert one.record_wrong_key("10.0.0.1") == 0.0, "it is forgotten"


def test_who_has_a_network_is_one_and_memory_is_bounded() -> None:
    rng, one = random.Random(1), WrongKeyLimiter(Clock())
    for number in range(FREE):
        assert not one.record_wrong_key(f"2001:db8:1:2::{number:x}")
    assert one.record_wrong_key("2001:db8:1:2:ffff::1%eth0")
    assert not one.record_wrong_key("2001:db8:1:3::1")
    for _ in range(FREE - 1):
        one.record_wrong_key("::ffff:10.0.0.9")
    one.record_wrong_key("10.0.0.9")
    assert one.record_wrong_key("10.0.0.9"), "the same address in another form"
    for _ in range(3 * wrong_key_limit._MOST_PEERS):
        one.record_wrong_key(f"{rng.getrandbits(32):x}")
    assert len(one) == wrong_key_limit._MOST_PEERS
    assert not one.record_wrong_key(None)


async def test_a_right_key_passes_where_wrong_ones_are_braked(
    text: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(text, FakeFleet(says([100])), api_key=KEY) as gateway:

        async def ask(key: str | None) -> httpx.Response:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            return await gateway.http.post("/v1/chat/completions", json=CHAT, headers=headers)

        statuses = [(await ask(f"wrong-{number}")).status_code for number in range(FREE + 3)]
        assert statuses == [401] * FREE + [429] * 3
        refused = await ask("another")
        assert refused.json()["error"]["code"] == "too_many_wrong_keys"
        assert 0 < float(refused.headers["retry-after-ms"]) <= 1000
        assert int(refused.headers["retry-after"]) == 1
        assert (await ask(KEY)).status_code == 200
        assert (await ask(None)).status_code == 401, "no key is no guess"
        assert (await ask("another")).status_code == 429, "a right key forgives nothing"
    assert sum("invalid API keys from" in one.message for one in caplog.records) == 1
