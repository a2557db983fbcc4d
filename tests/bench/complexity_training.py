"""Trains the scorer `trained` of the model router `complexity`, and compares it with the heuristic.

The label of a request is whether the greedy answers of `nano-draft` and `nano` differ in their
first tokens. Requests are questions about the standard library, in the wordings that the models
were trained on and in others. Held-out ones have other wordings and are about other modules.

    python -m tests.bench.complexity_training --write
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, hstack
from scipy.stats import rankdata
from tokenizers import Tokenizer

from gatewayd_engine.model.embedded import folder
from gatewayd_engine.offline.train import chats
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_engine.process.messages import SamplingParams, Submit
from gatewayd_hooks.targets.model_routing import RoutedRequest
from gatewayd_mroute_complexity import features, trained
from tests.plugins.model_routers.complexity_requests import (
    FOLDS,
    SEED,
    Asked,
    asked,
    requests_digest,
    split,
)

REQUESTS = 6400
MOST_TOKENS = 24
"""Answers are compared up to here: longer ones nearly always differ somewhere."""
PENALTIES = (0.3, 1.0, 3.0, 10.0)
"""Factors of the squared weights of n-grams, chosen by AUC on folds of the training part."""
SHAPE_PENALTY = 0.1
"""The same of the few other features, of which training has thousands of values each."""
THRESHOLD = 0.3
"""From which the second of two targets is chosen, by default."""

Loss = Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]]
"""Returns the loss and its gradient."""


class Figures(NamedTuple):
    """Quality of scores on labels."""

    auc: float
    accuracy: float


def answers(name: str, every: Sequence[Asked]) -> list[list[int]]:
    """Return the first tokens of a model's greedy answers."""
    # Not at the top: it settles the threads of the process, and tests use the rest of this file.
    from tests.bench.in_process_engine import Drive, HostWith

    # After it, as this imports torch.
    from gatewayd_engine.core.build import assemble  # isort: skip

    some = StrategyChoice
    config = EngineConfig(
        model=str(folder(name)),
        scheduler=some("fcfs"),
        prefix_cache=some("hash"),
        eviction=some("lru"),
        preemption=some("recompute"),
        logits_processors=[],
        drafter=None,
        spec_controller=some("adaptive"),
        guide=some("llguidance"),
        page_size=16,
        max_running=64,
        max_batch_tokens=2048,
        seed=SEED,
    )
    core = assemble(config, HostWith({}), lambda stage, fraction: None).core
    drive, tokenizer = Drive(core), Tokenizer.from_file(str(folder() / "tokenizer.json"))
    for sequence, (one, encoded) in enumerate(
        zip(every, tokenizer.encode_batch([one.prompt for one in every]), strict=True)
    ):
        params = SamplingParams(
            max_tokens=2 * MOST_TOKENS if one.choices else MOST_TOKENS,
            temperature=0.0,
            guide=("choice", json.dumps(one.choices)) if one.choices else None,
        )
        prompt = np.array(encoded.ids, np.int32).tobytes()
        core.submit(Submit([sequence], prompt, params))
    drive.finish()
    return [drive.tokens[sequence] for sequence in range(len(every))]


def labels_of(every: Sequence[Asked]) -> NDArray[np.bool_]:
    """Return whether the answer of the smaller model differs from that of the larger one."""
    pairs = zip(answers("nano-draft", every), answers("nano", every), strict=True)
    return np.array([small != large for small, large in pairs])


def matrix(every: Sequence[Asked]) -> csr_matrix:
    """Features of requests: a column of ones, the shape, the n-grams."""
    present = np.stack([trained.ngrams(one.request.text) for one in every])
    text = csr_matrix(present / np.sqrt(np.maximum(present.sum(1, keepdims=True), 1)))
    shape = np.array([trained.shape_of(one.request) for one in every])
    return csr_matrix(hstack([np.ones((len(every), 1)), shape, text]))


def loss_of(x: csr_matrix, labels: NDArray[np.bool_], penalty: float) -> Loss:
    """Negative log-likelihood of the weights, and the penalty of all but the bias."""
    y = labels.astype(np.float64)
    decay = np.full(x.shape[1], penalty)
    decay[0], decay[1 : 1 + len(trained.SHAPE)] = 0.0, SHAPE_PENALTY

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        odds = x @ w
        value = np.logaddexp(0, odds).sum() - y @ odds + 0.5 * decay @ (w * w)
        return float(value), x.T @ (1 / (1 + np.exp(-odds)) - y) + decay * w

    return loss


def fit(x: csr_matrix, labels: NDArray[np.bool_], penalty: float) -> NDArray[np.float64]:
    """Weights of the logistic regression, the first of which is the bias."""
    loss = loss_of(x, labels, penalty)
    found = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B")
    return np.asarray(found.x, np.float64)


def fit_on(
    x: csr_matrix, labels: NDArray[np.bool_], part: NDArray[np.bool_], penalty: float
) -> NDArray[np.float64]:
    """Weights fitted to a part of the requests."""
    return fit(x[part], labels[part], penalty)


def auc(scores: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """Probability that a request with the label scores higher than one without."""
    ones = int(labels.sum())
    ranks = float(rankdata(scores)[labels].sum())
    return (ranks - ones * (ones + 1) / 2) / (ones * (len(labels) - ones))


def figures(scores: NDArray[np.float64], labels: NDArray[np.bool_], threshold: float) -> Figures:
    """AUC, and the part of the requests that a threshold assigns to the right target."""
    return Figures(auc(scores, labels), float(((scores >= threshold) == labels).mean()))


def chosen_penalty(x: csr_matrix, labels: NDArray[np.bool_], every: Sequence[Asked]) -> float:
    """The penalty with the best AUC on folds of the training part of the first split."""
    outer = split(every, 0).train

    def mean_auc(penalty: float) -> float:
        found = []
        for fold in range(1, FOLDS):
            inner = split(every, fold)
            weights = fit_on(x, labels, outer & inner.train, penalty)
            held = outer & inner.test
            found.append(auc(x[held] @ weights, labels[held]))
        return float(np.mean(found))

    return max(PENALTIES, key=mean_auc)


def stored(weights: NDArray[np.float64], facts: dict[str, object]) -> str:
    """JSON of weights, in units of 1 / ``SCALE``."""
    whole = np.rint(weights * trained.SCALE).astype(int).tolist()
    num_shape = len(trained.SHAPE)
    shape = dict(zip(trained.SHAPE, whole[1 : 1 + num_shape], strict=True))
    made = {**facts, "bias": whole[0], "shape": shape, "table": whole[1 + num_shape :]}
    return json.dumps(made, separators=(",", ":")) + "\n"


def heuristic(every: Sequence[Asked]) -> NDArray[np.float64]:
    """Complexities of requests by the default scorer."""
    return np.array([features.complexity(one.request)[0] for one in every])


def questions() -> list[Asked]:
    """The questions that ``tests.bench.cascade`` has for `complexity`."""
    from tests.bench.cascade import mixed

    found = []
    for task in mixed(Random(SEED)):
        request = RoutedRequest(
            request_id="r", text=task.question, num_chars=len(task.question), needs_json=True
        )
        prompt = chats.render([chats.TrainingTurn(task.question, "")], None)
        found.append(
            Asked(request, prompt.removesuffix(f"{chats.END}\n"), task.choices, "where", 0, 0)
        )
    return found


def report(
    title: str, every: Sequence[Asked], labels: NDArray[np.bool_], weights: NDArray[np.float64]
) -> None:
    """Print the quality of both scorers."""
    ours, theirs = 1 / (1 + np.exp(-(matrix(every) @ weights))), heuristic(every)
    print(f"{title}: {len(every)} requests, {labels.mean():.3f} differ")
    free = np.array([not one.choices for one in every])
    for name, scores, threshold in (
        ("trained", ours, THRESHOLD),
        ("trained", ours, 0.5),
        ("heuristic", theirs, THRESHOLD),
    ):
        row, larger = figures(scores, labels, threshold), (scores >= threshold).mean()
        without = f" ({auc(scores[free], labels[free]):.3f} without a grammar)" if any(free) else ""
        print(
            f"  {name} from {threshold}: AUC {row.auc:.3f}{without}, accuracy {row.accuracy:.3f}, "
            f"{larger:.3f} to the larger model"
        )


def labelled(every: Sequence[Asked], file: Path | None) -> NDArray[np.bool_]:
    """Read labels from a file, or compute and write them."""
    if file and file.exists():
        return np.asarray(np.load(file), np.bool_)
    labels = labels_of(every)
    if file:
        np.save(file, labels)
    return labels


def main() -> int:
    """Label, train, compare, and perhaps write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=Path, help="file of labels: read if it exists")
    parser.add_argument("--write", action="store_true", help="write the weights of the plugin")
    given = parser.parse_args()
    # First: torch, which labels import, replaces functions of modules that are asked about.
    asked_there = questions()
    every = asked(REQUESTS)
    labels = labelled(every, given.labels)
    x = matrix(every)
    penalty = chosen_penalty(x, labels, every)
    print(f"penalty {penalty}")
    fitted = {fold: fit_on(x, labels, split(every, fold).train, penalty) for fold in range(FOLDS)}
    for fold, weights in fitted.items():
        both = split(every, fold)
        module = np.array([one.module for one in every]) == fold
        for title, part in (
            ("other wordings and modules", both.test),
            ("other modules", module & ~both.test),
        ):
            some = [one for one, chosen in zip(every, part, strict=True) if chosen]
            report(f"fold {fold}, {title}", some, labels[part], weights)
    if given.write:
        facts: dict[str, object] = {
            "penalty": penalty,
            "requests": len(every),
            "requests_sha256": requests_digest(every),
            "labels": np.packbits(labels).tobytes().hex(),
        }
        trained.WEIGHTS.write_text(stored(fitted[0], facts), "utf-8")
    report("tests.bench.cascade", asked_there, labels_of(asked_there), fitted[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
