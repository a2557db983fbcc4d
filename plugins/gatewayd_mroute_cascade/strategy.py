"""Has small targets answer first, and larger ones where the answer seems uncertain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.targets.model_routing import (
    AttemptVerdict,
    AttemptView,
    CandidateView,
    Decision,
    RoutedRequest,
)
from gatewayd_mroute_cascade.config import CascadeConfig

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class Cascade:
    """Judges an answer by its log-probabilities, its checks, and its consistency."""

    def __init__(self, config: CascadeConfig) -> None:
        self._config = config
        self._phrases = [phrase.lower() for phrase in config.rejected_phrases]

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def route(self, request: RoutedRequest, candidates: Sequence[CandidateView]) -> Decision:
        """Return the configured order, without targets that would have to be waited for."""
        ready = [one.name for one in candidates if one.is_ready]
        order = ready or [one.name for one in candidates]
        scores = {one.name: float(one.is_ready) for one in candidates}
        return Decision(
            order,
            "the configured order; answers are judged",
            scores,
            is_judged=True,
            samples=self._config.samples,
        )

    def judge(self, attempt: AttemptView) -> AttemptVerdict:
        """Accept an answer that is certain enough and passes all checks."""
        config, mean = self._config, attempt.mean_logprob
        if problem := self._problem(attempt):
            return AttemptVerdict(is_accepted=False, reason=problem, score=mean)
        if mean is not None and mean < config.min_logprob:
            said = f"mean log-probability {mean:.3f} below {config.min_logprob:g}"
            return AttemptVerdict(is_accepted=False, reason=said, score=mean)
        if attempt.others:
            own = _normal(attempt.text)
            share = sum([_normal(other) == own for other in attempt.others]) / len(attempt.others)
            if share < config.min_agreement:
                said = f"agreement {share:.2f} below {config.min_agreement:g}"
                return AttemptVerdict(is_accepted=False, reason=said, score=mean)
        said = "no log-probabilities" if mean is None else f"mean log-probability {mean:.3f}"
        return AttemptVerdict(is_accepted=True, reason=said, score=mean)

    def _problem(self, attempt: AttemptView) -> str:
        """Return why a check fails; empty if none does."""
        text = attempt.text.lower()
        if not text.strip():
            return "an empty answer"
        if attempt.finish_reason == "length" and not self._config.accepts_cut:
            return "an answer that was cut"
        if any(phrase in text for phrase in self._phrases):
            return "an answer with a rejected phrase"
        if (
            attempt.request.needs_json
            and attempt.finish_reason == "length"
            and not _is_json(attempt.text)
        ):
            return "JSON that was cut"
        return ""


def _normal(text: str) -> str:
    """Return the text without case, punctuation and white space."""
    return "".join([character for character in text.lower() if character.isalnum()])


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
