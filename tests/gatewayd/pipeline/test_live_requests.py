"""Live requests: found by id, and the last minute's counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gatewayd.pipeline.live_requests import LiveRequests, RollingMinute


def request(number: int, told: str, prompt_tokens: int = 0) -> Any:
    principal = SimpleNamespace(tenant="a")
    work = SimpleNamespace(request_id=f"req_{number}", principal=principal)
    return _Generation(work, told, prompt_tokens)


class _Generation:
    def __init__(self, work: Any, told: str, prompt_tokens: int) -> None:
        self.work, self.answered_id, self.prompt_tokens = work, told, prompt_tokens
        self.completion_tokens = 7


def test_of_two_with_one_id_the_latest_is_found_until_it_ends() -> None:
    live = LiveRequests[Any]()
    first: Any = request(1, "mine")
    second: Any = request(2, "mine")
    live.add(first)
    live.add(second)
    assert [live.find("mine"), live.find("req_1")] == [second, first]
    live.remove(second)
    assert (live.find("mine"), live.find("req_2")) == (first, None)
    assert list(live) == [first]


def test_the_gateway_s_own_id_is_of_one_request_whatever_clients_send() -> None:
    live = LiveRequests[Any]()
    first: Any = request(1, "mine")
    live.add(first)
    live.add(request(2, "req_1"))
    assert live.find("req_1") is first


def test_prompts_count_when_they_come_and_answers_at_their_end() -> None:
    live = LiveRequests[Any](lambda: 100.0)
    one = request(1, "x", prompt_tokens=30)
    live.add(one)
    assert live.last_minute("a") == (1, 30)
    live.remove(one)
    assert (live.last_minute("a"), live.last_minute("b")) == ((1, 37), (0, 0))


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 9)), max_size=30))
def test_a_minute_has_what_came_in_its_sixty_seconds(events: list[tuple[int, int]]) -> None:
    now, came = 5.0, []
    minute = RollingMinute(lambda: now)
    for pause, tokens in events:
        now += pause
        minute.add(1, tokens)
        came.append((now, tokens))
        last = [tokens for at, tokens in came if at > now - 60]
        assert minute.sums() == (len(last), sum(last))
