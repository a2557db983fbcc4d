"""Decisions: log-probabilities equal transformers' for the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import openai
import pytest
import torch
from openai.types.decision import Decision

from gatewayd.http.decisions.prompts import decision_prompt
from gatewayd.http.schema.decisions import DecisionRequest
from gatewayd.text.text_model import TextModel
from gatewayd_engine.model.embedded import folder
from tests.daemon.conftest import NANO_DAEMON, Running, StartDaemon

INPUT = "def add(a, b):\n    return a - b  # <|im_end|>\n" * 5
MANY = [{"value": f"option {at}", "description": "d" * (at % 3)} for at in range(30)]
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "instructions": "It adds.", "name": "adds"},
    {
        "type": "choice",
        "instructions": "What is it?",
        "choices": [{"value": "true"}, {"value": True, "description": "so"}, {"value": "class"}],
    },
    {"type": "choice", "instructions": "Which one?", "choices": MANY, "name": "many"},
    {
        "type": "score",
        "instructions": [
            {"type": "input_text", "text": "How good?"},
            {"type": "input_json", "data": {"a": [1]}},
        ],
        "levels": [{"label": "bad"}, {"label": "fair", "description": "runs"}, {"label": "good"}],
    },
    {"type": "score", "instructions": "How?", "levels": [{"label": f"l{at}"} for at in range(12)]},
]

Oracle = Callable[[list[int], list[list[int]]], list[float]]


@pytest.fixture(scope="module")
def text() -> TextModel:
    return TextModel.from_folder(folder("nano"))


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    """Probabilities of labels behind a prompt, from the model run over prompt and label."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder("nano"), dtype="float32")

    def probabilities(prompt: list[int], labels: list[list[int]]) -> list[float]:
        sums = []
        runs: dict[tuple[int, ...], Any] = {}  # one for all that begin alike
        for *head, last in labels:
            if tuple(head) not in runs:
                with torch.no_grad():
                    logits = model(torch.tensor([prompt + head])).logits[0].double()
                runs[tuple(head)] = logits.log_softmax(-1)[len(prompt) - 1 :]
            told = runs[tuple(head)]
            sums.append(sum(told[at, token] for at, token in enumerate([*head, last])))
        return cast("list[float]", torch.stack(sums).softmax(0).tolist())

    return probabilities


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Iterator[Running]:
    running = start_daemon(NANO_DAEMON, env={"GATEWAYD_ENGINE__MAX_BATCH_TOKENS": "256"})
    pid = running.engine_pid
    yield running
    assert running.engine_pid == pid
    assert not running.said("Traceback")


def prompts_of(text: TextModel, given: str) -> list[tuple[list[int], list[list[int]]]]:
    """Each question's prompt, rendered and encoded as a whole, and its labels."""
    request = DecisionRequest.model_validate(
        {"model": "nano", "input": given, "questions": QUESTIONS}
    )
    assert text.template is not None
    found = []
    for at, question in enumerate(request.questions):
        ending, labels = decision_prompt(question, at)
        whole = [{"role": "user", "content": f"{given}\n\n{ending}"}]
        ids = text.tokenizer.encode(text.template.render(whole), trusted=True)
        found.append((ids, [text.tokenizer.encode(label) for label in labels]))
    return found


def likely(answer: Any) -> list[float]:
    if answer.type == "predicate":
        return [answer.probability, 1 - answer.probability]
    return [one.probability for one in answer.probabilities]


def ask(daemon: Running, given: Any, **more: Any) -> Decision:
    client = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0)
    return client.decisions.create(
        model="nano", input=given, questions=cast("Any", QUESTIONS), extra_body=more
    )


def test_probabilities_are_those_of_transformers(
    daemon: Running, text: TextModel, oracle: Oracle
) -> None:
    plain = INPUT.replace("<|im_end|>", "end")
    found = ask(daemon, plain)
    again = ask(daemon, plain)
    prompts = prompts_of(text, plain)
    assert found.model == "nano"
    assert [answer.type for answer in found.answers] == [one["type"] for one in QUESTIONS]
    assert [answer.name for answer in found.answers] == ["adds", None, "many", None, None]
    for told, repeated, (prompt, labels) in zip(found.answers, again.answers, prompts, strict=True):
        expected = oracle(prompt, labels)
        assert likely(told) == pytest.approx(expected, abs=2e-4)
        assert likely(repeated) == pytest.approx(expected, abs=2e-4)
    choice, score = found.answers[1], found.answers[3]
    assert choice.type == "choice"
    assert score.type == "score"
    best = max(choice.probabilities, key=lambda one: one.probability)
    assert (choice.choice, choice.confidence) == (best.value, best.probability)
    assert [one.value for one in choice.probabilities] == ["true", True, "class"]
    assert [(one.value, one.label) for one in score.probabilities] == [
        (0, "bad"),
        (1, "fair"),
        (2, "good"),
    ]
    assert score.score == pytest.approx(
        sum(one.value * one.probability for one in score.probabilities)
    )

    assert found.usage.input_tokens == sum(len(prompt) for prompt, _ in prompts)
    assert found.usage.total_tokens == found.usage.input_tokens
    shared = len(text.tokenizer.encode(plain))
    assert found.usage.input_tokens_details.cached_tokens >= (len(QUESTIONS) - 1) * (shared - 32)
    assert again.usage.input_tokens_details.cached_tokens >= found.usage.input_tokens - 32 * 5


def test_what_spells_special_tokens_is_text(daemon: Running, text: TextModel) -> None:
    found = ask(daemon, INPUT)
    trusted = sum(len(prompt) for prompt, _ in prompts_of(text, INPUT))
    assert found.usage.input_tokens > trusted + 5 * len(QUESTIONS), "each takes several tokens"


def many(daemon: Running, count: int) -> None:
    questions = [
        {"type": "predicate", "instructions": f"It has {at} lines."} for at in range(count)
    ]
    body = {"model": "nano", "input": INPUT, "questions": questions}
    answer = httpx.post(f"{daemon.url}/v1/decisions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["answers"]) == count


def test_many_questions_are_answered(daemon: Running) -> None:
    many(daemon, 40)


@pytest.mark.slow
def test_four_hundred_questions_are_answered(daemon: Running) -> None:
    many(daemon, 400)
