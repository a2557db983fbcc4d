"""Complexity of a request, 0 to 1, by features of its text: no model, microseconds.

Each feature is a share of its saturation, 0 to 1, times its weight; they are combined as
independent reasons, ``1 - product(1 - weight * share)``, so that each adds to the others and the
sum never exceeds 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gatewayd_hooks.targets.model_routing import RoutedRequest

_REASONING = """
    analyse analyze assess calculate compare contrast critique debug deduce derive design determine
    diagnose evaluate explain implement infer integrate investigate justify optimise optimize plan
    prove reason refactor solve step steps strategy synthesize tradeoff tradeoffs verify why
"""
_CODE = (
    "```", "def ", "class ", "import ", "#include", "function ", "return ", "SELECT ", "=>", "();",
    "</", "Traceback", "{\n",
)  # fmt: skip
_MATH = frozenset("=+*/^<>∑∫√≤≥≠≈π∞∂%")
_MATH_WORDS = """
    derivative equation factorial integral logarithm matrix modulo polynomial prime probability
    quadratic squared theorem vector
"""
_REASONING_WORDS, _MATH_NAMES = frozenset(_REASONING.split()), frozenset(_MATH_WORDS.split())
_EDGES = ".,;:!?()[]{}\"'`*"


def _count(words: list[str], known: frozenset[str]) -> int:
    return sum([word in known for word in words])


class Feature(NamedTuple):
    """One reason for complexity.

    Attributes:
        weight: complexity of a request that has it in full and no other.
        share: returns how much of it a request has, 0 to 1.
    """

    weight: float
    share: Callable[[RoutedRequest, list[str]], float]


def _reasoning(request: RoutedRequest, words: list[str]) -> float:
    return _count(words, _REASONING_WORDS) / 3


def _code(request: RoutedRequest, words: list[str]) -> float:
    return sum([mark in request.text for mark in _CODE]) / 2


def _math(request: RoutedRequest, words: list[str]) -> float:
    marks = sum([character in _MATH for character in request.text])
    return (marks + 2 * _count(words, _MATH_NAMES)) / 6


def _questions(request: RoutedRequest, words: list[str]) -> float:
    return (request.text.count("?") - 1) / 3


FEATURES: Mapping[str, Feature] = {
    "length": Feature(0.5, lambda request, words: request.num_chars / 8000),
    "reasoning": Feature(0.55, _reasoning),
    "code": Feature(0.4, _code),
    "math": Feature(0.4, _math),
    "questions": Feature(0.2, _questions),
    "output format": Feature(0.25, lambda request, words: float(request.needs_json)),
    "tools": Feature(0.35, lambda request, words: request.num_tools / 4),
    "conversation": Feature(0.2, lambda request, words: (request.num_messages - 1) / 10),
}


def complexity(request: RoutedRequest) -> tuple[float, str]:
    """Return the complexity of a request, and its largest feature; empty without any."""
    words = [word.strip(_EDGES) for word in request.text.lower().split()]
    parts = {
        name: feature.weight * min(1.0, max(0.0, feature.share(request, words)))
        for name, feature in FEATURES.items()
    }
    rest = 1.0
    for part in parts.values():
        rest *= 1 - part
    largest = max(parts, key=parts.__getitem__)
    return 1 - rest, largest if parts[largest] > 0 else ""
