"""Target of requests: what serves the names of one model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gatewayd.engines.api import Fleet
from gatewayd.engines.grammar_checks.checks import GuideChecks
from gatewayd.metrics.registry import Metrics
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.plugins.parsers import ModelParsers
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.detection import Detector


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Target:
    """A model with its engines and its text side.

    Attributes:
        names: names that requests may use; the first is the model's own.
        fleet: the engines.
        text: tokenizer and chat template.
        metrics: of its requests and engines.
        live: requests in flight at the engines.
        parsers: reasoning and tool-call parsers of its output.
        guides: checks grammars; None leaves that to the engines.
        detector: returns the detector of the current watermark; None without a watermark.
    """

    names: tuple[str, ...]
    fleet: Fleet
    text: TextModel
    metrics: Metrics
    live: LiveRequests[Generation] = field(default_factory=LiveRequests)
    parsers: ModelParsers = field(default_factory=ModelParsers)
    guides: GuideChecks | None = None
    detector: Callable[[], Detector | None] = lambda: None

    @property
    def name(self) -> str:
        """The model's own name."""
        return self.names[0]
