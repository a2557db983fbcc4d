"""Target of requests: what serves the names of one model, engines or an upstream."""

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
    """What serves a model; one of the two classes below.

    Attributes:
        names: names that requests may use; the first is the model's own.
        fleet: the engines, or the upstream.
        metrics: of its requests and engines.
        live: requests in flight.
    """

    names: tuple[str, ...]
    fleet: Fleet
    metrics: Metrics
    live: LiveRequests[Generation] = field(default_factory=LiveRequests)

    @property
    def name(self) -> str:
        """The model's own name."""
        return self.names[0]

    @property
    def max_model_len(self) -> int | None:
        """Its context length in tokens; None if not known, or not yet."""
        return None if self.fleet.model is None else self.fleet.model.max_model_len


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ModelTarget(Target):
    """A local model with its engines and its text side.

    Attributes:
        text: tokenizer and chat template.
        parsers: reasoning and tool-call parsers of its output.
        guides: checks grammars; None leaves that to the engines.
        detector: returns the detector of the current watermark; None without a watermark.
    """

    text: TextModel
    parsers: ModelParsers = field(default_factory=ModelParsers)
    guides: GuideChecks | None = None
    detector: Callable[[], Detector | None] = lambda: None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class UpstreamTarget(Target):
    """A model of an upstream, to which its requests are relayed.

    Attributes:
        upstream: name of the upstream in the configuration.
        model: name of the model there.
        context_length: in tokens, prompt and answer together; None if not configured.
        max_output_tokens: reserved for a request that sets no maximum.
    """

    upstream: str
    model: str
    context_length: int | None = None
    max_output_tokens: int = 8192

    @property
    def max_model_len(self) -> int | None:
        """Its context length in tokens; None if not configured."""
        return self.context_length
