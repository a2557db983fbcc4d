"""Model router `complexity`: the trained scorer."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.targets.model_routing import MOST_TEXT, CandidateView, RoutedRequest
from gatewayd_hooks.testing.targets.model_routing import ModelRouterConformance
from gatewayd_mroute_complexity import trained
from gatewayd_mroute_complexity.config import ComplexityConfig
from gatewayd_mroute_complexity.strategy import Complexity
from tests.bench import complexity_training as training
from tests.complexity import best_seconds
from tests.gatewayd.http.routes.routed import strategy_of
from tests.plugins.model_routers import complexity_requests as asked_about

TARGETS = [CandidateView(name=name) for name in ("small", "medium", "large")]
HARD = "Show me the source of shutil.copytree."
EASY = RoutedRequest(
    request_id="r", text="Which module has OrderedDict?", num_chars=29, needs_json=True
)


def asked(text: str, **more: Any) -> RoutedRequest:
    return RoutedRequest(**{"request_id": "r", "text": text, "num_chars": len(text), **more})


def probability(request: RoutedRequest) -> float:
    return trained.probability(request, trained.load())[0]


def chosen(every: Sequence[asked_about.Asked], part: NDArray[np.bool_]) -> list[asked_about.Asked]:
    return list(compress(every, part))


class TestTrained(ModelRouterConformance):
    def make(self) -> Complexity:
        return Complexity(ComplexityConfig(scorer="trained"))


def test_a_score_is_the_logistic_function_of_the_weights_of_its_features() -> None:
    weights, text = trained.load(), "Explain é."
    data, found = f" {text} ".encode(), set()
    for order in trained.ORDERS:
        for at in range(len(data) - order + 1):
            code = 0
            for byte in data[at : at + order]:
                code = (code * 0x01000193 + byte) % 2**32
            found.add((code * 0x9E3779B1 % 2**32) >> (32 - trained.TABLE_BITS))
    assert set(np.flatnonzero(trained.ngrams(text)).tolist()) == found
    shape = [math.log1p(20) / math.log1p(1000), 2 / 6, 1.0, 0.0]
    odds = weights.bias + sum(weights.table[at] for at in found) / math.sqrt(len(found))
    odds += sum(weight * share for weight, share in zip(weights.shape, shape, strict=True))
    request = asked(text, num_chars=20, num_messages=3, num_tools=4)
    assert probability(request) == pytest.approx(1 / (1 + math.exp(-odds)))


def test_the_thresholds_select_the_target_by_the_score() -> None:
    router = strategy_of("complexity", scorer="trained")
    for request, who in ((EASY, "small"), (asked(HARD), "large")):
        decision = router.route(request, TARGETS)
        assert decision.order[0] == who, (decision, probability(request))
        assert decision.reason.startswith(f"trained complexity {probability(request):.3f}, ")
        assert decision == strategy_of("complexity", scorer="trained").route(request, TARGETS)
    value = probability(asked(HARD))
    above = strategy_of("complexity", scorer="trained", thresholds=[min(1.0, value + 0.01)])
    assert above.route(asked(HARD), TARGETS[:2]).order[0] == "small"


@pytest.mark.parametrize("text", ["", "a", "\ud800", "\0" * 9, "日本" * 4000, "?" * MOST_TEXT])
@pytest.mark.parametrize("shape", [{}, {"num_chars": 10**7, "num_messages": 0, "num_tools": 128}])
def test_any_text_has_a_score_of_0_to_1(text: str, shape: dict[str, Any]) -> None:
    assert 0 <= probability(asked(text, **shape)) <= 1


def test_the_default_is_the_heuristic_and_unknown_scorers_are_refused() -> None:
    decision = strategy_of("complexity").route(asked(HARD), TARGETS)
    assert decision == strategy_of("complexity", scorer="heuristic").route(asked(HARD), TARGETS)
    with pytest.raises(PluginError, match="scorer"):
        strategy_of("complexity", scorer="oracle")


@pytest.mark.parametrize("text", ["Why is this so? ", "日本語 "])
def test_the_longest_text_takes_below_a_millisecond_and_little_memory(text: str) -> None:
    request, weights = asked((text * MOST_TEXT)[:MOST_TEXT]), trained.load()
    assert best_seconds(lambda: trained.probability(request, weights), tries=9) < 1e-3
    tracemalloc.start()
    trained.probability(request, weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_weights_for_other_features_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = json.loads(trained.WEIGHTS.read_text())
    short["table"].pop()
    file = tmp_path / "weights.json"
    file.write_text(json.dumps(short))
    monkeypatch.setattr(trained, "WEIGHTS", file)
    with pytest.raises(ValueError, match="written for other features"):
        trained.load.__wrapped__()


def test_the_weights_are_those_that_the_script_fits_to_its_labels() -> None:
    """The loss is convex: weights without a gradient are the fitted ones, but for rounding."""
    assert trained.WEIGHTS.stat().st_size < 64 << 10
    facts, weights = json.loads(trained.WEIGHTS.read_text()), trained.load()
    every = asked_about.asked(facts["requests"])
    if asked_about.requests_digest(every) != facts["requests_sha256"]:
        pytest.skip("the weights were fitted to the standard library of another Python")
    bits = np.frombuffer(bytes.fromhex(facts["labels"]), np.uint8)
    labels = np.unpackbits(bits, count=len(every)).astype(bool)
    train, test = asked_about.split(every, 0)
    x = training.matrix(chosen(every, train))
    found = np.concatenate([[weights.bias], weights.shape, weights.table])
    loss = training.loss_of(x, labels[train], facts["penalty"])
    at_zero, at_found = (np.linalg.norm(loss(w)[1]) for w in (np.zeros_like(found), found))
    assert at_found < 0.005 * at_zero
    # The claim of the documents.
    held_out = chosen(every, test)
    scores = np.array([probability(one.request) for one in held_out])
    theirs = training.auc(training.heuristic(held_out), labels[test])
    assert training.auc(scores, labels[test]) > theirs + 0.3
