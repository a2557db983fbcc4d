"""Model routers: equal their definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.targets.model_routing import AttemptView, CandidateView, RoutedRequest
from tests.gatewayd.http.routes.routed import strategy_of

KEYS = 100_000


def asked(text: str = "hi", **more: Any) -> RoutedRequest:
    return RoutedRequest(**{"request_id": "r", "text": text, "num_chars": len(text), **more})


def views(*names: str, **more: Any) -> list[CandidateView]:
    return [CandidateView(name=name, **more) for name in names]


def shares(router: Any, targets: Sequence[CandidateView], **by: str) -> dict[str, str]:
    """The target of each key."""
    return {
        key: router.route(asked(key_id=key), targets).order[0]
        for key in (f"key{at}" for at in range(KEYS))
    }


def test_a_split_is_as_the_weights_within_one_percent_and_sticky() -> None:
    weights = {"a": 1, "b": 3, "c": 6}
    targets = views("a", "b", "c")
    router = strategy_of("split", weights=weights)
    found = shares(router, targets)
    counts = Counter(found.values())
    for name, weight in weights.items():
        assert abs(counts[name] / KEYS - weight / 10) < 0.01
    # Another process, another order of the targets: the same.
    again = strategy_of("split", weights=weights)
    assert shares(again, targets[::-1]) == found


def test_only_as_many_keys_move_as_weights_change() -> None:
    targets = views("a", "b", "c")
    before = shares(strategy_of("split", weights={"a": 50, "b": 45, "c": 5}), targets)
    after = shares(strategy_of("split", weights={"a": 50, "b": 45, "c": 10}), targets)
    moved = {key for key in before if before[key] != after[key]}
    assert {after[key] for key in moved} == {"c"}
    # 5 of 100 before, 10 of 105 after.
    assert abs(len(moved) / KEYS - (10 / 105 - 5 / 100)) < 0.005


def test_the_keys_of_a_target_that_is_not_ready_are_spread_over_the_others() -> None:
    router = strategy_of("split", weights={"a": 1, "b": 1, "c": 1})
    before = shares(router, views("a", "b", "c"))
    resting = [CandidateView(name="a", is_ready=False), *views("b", "c")]
    after = shares(router, resting)
    assert all(after[key] == before[key] for key in before if before[key] != "a")
    spread = Counter(after[key] for key in before if before[key] == "a")
    assert abs(spread["b"] / spread.total() - 0.5) < 0.02


@pytest.mark.parametrize(
    ("by", "field"), [("key", "key_id"), ("tenant", "tenant"), ("conversation", "conversation")]
)
def test_a_split_is_by_what_is_configured(by: str, field: str) -> None:
    router, targets = strategy_of("split", by=by), views("a", "b")
    base: dict[str, Any] = {"key_id": "k", "tenant": "t", "conversation": "c"}

    def chosen(changed: str) -> set[str]:
        fields = [{**base, changed: f"x{at}", "request_id": f"r{at}"} for at in range(50)]
        return {router.route(asked(**one), targets).order[0] for one in fields}

    for name in base:
        assert len(chosen(name)) == (2 if name == field else 1), name


def test_requests_without_a_key_are_split_one_by_one_and_weight_0_gets_none() -> None:
    router, targets = strategy_of("split", weights={"a": 1, "b": 0, "c": 1}), views("a", "b", "c")
    orders = [router.route(asked(request_id=f"r{at}"), targets).order for at in range(2000)]
    assert all(set(order) == {"a", "c"} for order in orders)
    assert abs(Counter(order[0] for order in orders)["a"] / 2000 - 0.5) < 0.05


PRICED = [
    CandidateView(name="s", input_price=0.1, output_price=0.4, quality=0.5, context_length=2000),
    CandidateView(name="m", input_price=0.5, output_price=2.0, quality=0.7, context_length=8000),
    CandidateView(name="l", input_price=2.0, output_price=8.0, quality=0.9, context_length=8000),
]


def cheapest(request: RoutedRequest, least: float) -> str:
    """The definition, by brute force."""
    fits = [
        one
        for one in PRICED
        if (one.quality or 0) >= least
        and request.num_chars / 4 + (request.max_tokens or 1) <= (one.context_length or 0)
    ]
    output = min(256, request.max_tokens or 256)

    def cost(one: CandidateView) -> float:
        prices = one.input_price or 0, one.output_price or 0
        return request.num_chars / 4 * prices[0] + output * prices[1]

    return min(fits, key=cost).name


@pytest.mark.parametrize("num_chars", [10, 7000, 12_000])
@pytest.mark.parametrize("max_tokens", [None, 16, 1500])
@pytest.mark.parametrize(("priority", "least"), [(0, 0.8), (1, 0.6), (2, 0.0)])
def test_the_cheapest_target_that_meets_the_class_is_chosen(
    num_chars: int, max_tokens: int | None, priority: int, least: float
) -> None:
    router = strategy_of("cost", realtime_quality=0.8, standard_quality=0.6)
    request = asked(num_chars=num_chars, max_tokens=max_tokens, priority=priority)
    decision = router.route(request, PRICED)
    assert decision.order[0] == cheapest(request, least)
    assert set(decision.order) == {"s", "m", "l"}
    assert decision.scores["s"] > decision.scores["m"] > decision.scores["l"]


def test_a_busy_target_is_passed_over_and_an_unpriced_one_is_last() -> None:
    router = strategy_of("cost", standard_seconds=5)
    late = [
        CandidateView(name="s", input_price=0.1, output_price=0.1, queue_seconds=5.1),
        CandidateView(name="u"),
        CandidateView(name="l", input_price=9.0, output_price=9.0, queue_seconds=4.9),
    ]
    decision = router.route(asked(), late)
    assert list(decision.order) == ["l", "u", "s"]
    assert set(decision.scores) == {"s", "l"}


SIMPLE = ["hi", "What is the capital of France?", "Translate 'good morning' to Spanish."]
MEDIUM = [
    "Explain why the sky is blue.",
    "Write a function that reverses a list:\n```python\ndef reverse(items):\n    return items\n```",
    "Compare two plans and explain which is cheaper. Why? How much cheaper?",
]
COMPLEX = [
    "Prove by induction, step by step, that 1 + 2 + ... + n = n*(n+1)/2, then derive the formula "
    "for squares and explain why it holds: x^2 + y^2 = z^2?",
    "Debug this and explain why it fails, then refactor and optimize it:\n```python\nimport os\n"
    "class A:\n    def f(self): return self.g()\n```\nTraceback (most recent call last): ... "
    "Analyze the complexity, compare it to a matrix solution: a = b * c + d / e? And the limits? "
    "What else?",
]


@pytest.mark.parametrize(
    ("texts", "who"), [(SIMPLE, "small"), (MEDIUM, "medium"), (COMPLEX, "large")]
)
def test_larger_targets_get_more_complex_requests(texts: list[str], who: str) -> None:
    router = strategy_of("complexity")
    for text in texts:
        decision = router.route(asked(text), views("small", "medium", "large"))
        assert decision.order[0] == who, (text, decision)
        assert decision.scores[who] == 1.0 == max(decision.scores.values())


@pytest.mark.parametrize(
    "more",
    [
        {"num_chars": 8000},
        {"needs_json": True},
        {"num_tools": 4},
        {"num_messages": 11},
        {"text": "hi why explain prove"},
        {"text": "hi ```def f(): ..."},
        {"text": "hi 1 + 2 = 3 * 4"},
        {"text": "hi? you? there?"},
    ],
)
def test_each_feature_adds_to_the_complexity(more: dict[str, Any]) -> None:
    from gatewayd_mroute_complexity.features import complexity

    plain, _ = complexity(asked())
    value, largest = complexity(asked(**more))
    assert plain < value <= 1
    assert largest


def test_thresholds_and_the_number_of_targets_decide() -> None:
    request = asked(num_chars=8000)  # complexity 0.5
    assert strategy_of("complexity").route(request, views("s", "l")).order == ["l", "s"]
    high = strategy_of("complexity", thresholds=[0.6])
    assert high.route(request, views("s", "l")).order == ["s", "l"]
    assert strategy_of("complexity").route(request, views("s")).order == ["s"]
    with pytest.raises(PluginError, match="thresholds must rise"):
        strategy_of("complexity", thresholds=[0.7, 0.3])


def attempt(text: str = "Paris", mean: float | None = -0.1, **more: Any) -> AttemptView:
    fields: dict[str, Any] = {"finish_reason": "stop", "others": [], "request": asked(), **more}
    return AttemptView(target="s", text=text, num_tokens=3, mean_logprob=mean, **fields)


@pytest.mark.parametrize(
    ("given", "is_accepted"),
    [
        (attempt(), True),
        (attempt(mean=-0.51), False),
        (attempt(mean=None), True),
        (attempt(text=" \n"), False),
        (attempt(text="I DON'T know."), False),
        (attempt(finish_reason="length"), False),
        (attempt(others=["paris.", "PARIS"]), True),
        (attempt(others=["paris", "rome", "oslo"]), False),
    ],
)
def test_what_a_cascade_accepts(given: AttemptView, is_accepted: bool) -> None:
    router: Any = strategy_of("cascade", accepts_cut=False, rejected_phrases=["i don't know"])
    assert router.judge(given).is_accepted == is_accepted


def test_cut_json_is_never_accepted() -> None:
    router: Any = strategy_of("cascade")
    cut: dict[str, Any] = {"finish_reason": "length", "request": asked(needs_json=True)}
    assert not router.judge(attempt(text='{"a": ', **cut)).is_accepted
    assert router.judge(attempt(text='{"a": true}', **cut)).is_accepted


@pytest.mark.parametrize(
    ("seconds", "has_room", "is_ready", "order"),
    [
        (0.0, True, True, ["home", "cloud"]),
        (2.1, True, True, ["cloud", "home"]),
        (0.0, False, True, ["cloud", "home"]),
        (0.0, True, False, ["cloud", "home"]),
    ],
)
def test_a_remote_target_gets_what_has_no_room_at_home(
    seconds: float, has_room: bool, is_ready: bool, order: list[str]
) -> None:
    home = CandidateView(name="home", queue_seconds=seconds, has_room=has_room, is_ready=is_ready)
    decision = strategy_of("edge_cloud", most_seconds=2).route(
        asked(), [CandidateView(name="cloud", is_local=False), home]
    )
    assert list(decision.order) == order
    assert decision.scores == {"home": 2 - seconds}
