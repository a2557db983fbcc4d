"""``POST /v1/decisions``: questions answered by the probabilities of their labels."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isfinite
from typing import Any

from gatewayd.engines.api import EngineRequest
from gatewayd.errors import ContextLengthExceeded, InvalidRequest, NumericalError
from gatewayd.http import body_threads
from gatewayd.http.asgi import Receive, Scope, Send, ignored_header, send_json
from gatewayd.http.decisions.continuations import ContinuationScorer
from gatewayd.http.decisions.prompts import DecisionPrompt, conversation, decision_prompt
from gatewayd.http.openai.generate import receive_request
from gatewayd.http.openai.sampling import priority_of, salt_of
from gatewayd.http.schema.decisions import (
    MAX_LABELS_TOGETHER,
    ChoiceQuestion,
    DecisionRequest,
    Predicate,
    ScoreQuestion,
)
from gatewayd.http.server.disconnect import disconnect_signal
from gatewayd.http.services import Services
from gatewayd.tenants.principal import principal_of
from gatewayd.text.shared_prompts import PromptVariants, render_variants
from gatewayd.text.tokenizer import PER_TEXT
from gatewayd_engine.process.messages import SamplingParams


class Decisions:
    """Route that answers questions about an input with probabilities."""

    label = "/v1/decisions"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        arrival = self._services.clock()
        request, ignored = await receive_request(self._services, DecisionRequest, scope, receive)
        services = self._services.serving(request.model)
        name = request.model or services.target.name
        model = await services.loaded_model()
        questions, rendered = await _rendered(services, request, model.max_model_len)
        tokenizer = services.text.tokenizer
        # Labels repeat across questions; each is encoded once.
        spelled = {label for one in questions for label in one.labels}

        def encode() -> tuple[list[list[int]], dict[str, tuple[int, ...]]]:
            ids = {label: tuple(tokenizer.encode(label)) for label in spelled}
            return rendered.encode(), ids

        size = rendered.size + sum([len(label) + PER_TEXT for label in spelled])
        prompts, ids = await tokenizer.run_by_size(size, encode)
        labels = [[ids[label] for label in one.labels] for one in questions]
        _check_lengths(prompts, labels, model.max_model_len)
        asking = ContinuationScorer(
            services,
            EngineRequest(
                request_id=scope["request_id"],
                prompt=(),
                params=SamplingParams(max_tokens=1),
                salt=salt_of(request),
                cache_key=request.prompt_cache_key or "",
                priority=priority_of(request),
            ),
            disconnect_signal(scope, receive),
            endpoint=self.label,
            arrival=arrival,
            principal=principal_of(scope),
            model=name,
        )
        scores = await asking.scores(prompts, labels, model.vocab_size)
        answers = [
            answer(question, probabilities(label_scores))
            for question, label_scores in zip(request.questions, scores, strict=True)
        ]
        usage = {
            "input_tokens": asking.input_tokens,
            "input_tokens_details": {
                "cached_tokens": asking.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": asking.input_tokens,
        }
        body = {"answers": answers, "model": name, "usage": usage}
        await send_json(send, body, headers=[*ignored_header(ignored), *asking.headers])


async def _rendered(
    services: Services, request: DecisionRequest, limit: int
) -> tuple[list[DecisionPrompt], PromptVariants]:
    """Render the prompts of all questions, in a thread if they have parts or items."""
    texts = [request.input, *[one.instructions for one in request.questions]]
    if all(isinstance(text, str) for text in texts):
        return _render(services, request, limit)
    return await body_threads.run_in_thread(lambda: _render(services, request, limit))


def _render(
    services: Services, request: DecisionRequest, limit: int
) -> tuple[list[DecisionPrompt], PromptVariants]:
    questions = [decision_prompt(one, at) for at, one in enumerate(request.questions)]
    _check_count(questions)
    text, parsers = services.text, services.parsers
    template = text.template
    # Calls are attributes of messages, not variables of the template.
    shows_calls = template is not None and "tool_calls" in template.source
    thinks = template is not None and template.uses_variable("enable_thinking")
    rendered = render_variants(
        text,
        conversation(request.input, parsers, shows_calls=shows_calls),
        [one.ending for one in questions],
        limit=limit,
        param="input",
        # The model must answer with the label directly, without reasoning.
        arguments={"enable_thinking": False} if thinks else {},
    )
    return questions, rendered


def _check_count(questions: Sequence[DecisionPrompt]) -> None:
    count = sum([len(one.labels) for one in questions])
    if count > MAX_LABELS_TOGETHER:
        raise InvalidRequest(
            f"questions have {count} labels together; the maximum of a request is "
            f"{MAX_LABELS_TOGETHER}: split the request",
            param="questions",
        )


def _check_lengths(
    prompts: Sequence[Sequence[int]], labels: Sequence[Sequence[Sequence[int]]], context: int
) -> None:
    for at, (prompt, some) in enumerate(zip(prompts, labels, strict=True)):
        count = len(prompt) + max(map(len, some))
        if count > context:
            raise ContextLengthExceeded(
                f"input, questions[{at}] and a label have {count} tokens; the model's context is "
                f"{context}: shorten them by {count - context}",
                param="input",
            )


def probabilities(scores: Sequence[float]) -> list[float]:
    """Normalize log-probabilities to probabilities that add up to 1.

    Raises:
        NumericalError: none of them is finite.
    """
    best = max(scores)
    if not isfinite(best):
        raise NumericalError("the model's logits are not finite")
    # Relative to the best one, so that the sum cannot underflow to 0.
    weights = [exp(score - best) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


def answer(
    question: Predicate | ChoiceQuestion | ScoreQuestion, likely: Sequence[float]
) -> dict[str, Any]:
    """Build OpenAI's answer object.

    Args:
        question: the question.
        likely: probabilities of its labels.
    """
    head = {"type": question.type, "name": question.name}
    if isinstance(question, Predicate):
        return {**head, "probability": likely[0]}
    confidence = max(likely)
    if isinstance(question, ChoiceQuestion):
        return {
            **head,
            "choice": question.choices[likely.index(confidence)].value,
            "confidence": confidence,
            "probabilities": [
                {"value": choice.value, "probability": p}
                for choice, p in zip(question.choices, likely, strict=True)
            ],
        }
    return {
        **head,
        "score": sum([value * p for value, p in enumerate(likely)]),
        "confidence": confidence,
        "probabilities": [
            {"label": level.label, "value": value, "probability": p}
            for value, (level, p) in enumerate(zip(question.levels, likely, strict=True))
        ],
    }
