"""Model routers: which target of a route answers a request. They run in the gateway, per request.

A route is a name that requests give as their model; its targets are models. The router returns the
order in which targets are tried: the next one is, if a target fails before the client has received
anything. A router that judges also sees each whole answer before it is sent, and may have the next
target answer instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources

OVERLOADED = "overloaded"
UNAVAILABLE = "unavailable"
LOST = "lost"
NUMERICAL = "numerical"
CONTEXT = "context"
UPSTREAM = "upstream"
UNSUPPORTED = "unsupported"
FAILURES = (OVERLOADED, UNAVAILABLE, LOST, NUMERICAL, CONTEXT, UPSTREAM, UNSUPPORTED)
"""Failures of a target after which another may answer: its queue is full; it is not served now; its
engine was lost; its logits were NaN; its context is too short for the request; the error of another
server; it cannot do what a field asks for."""

MOST_TEXT = 8192
"""Maximum characters of ``RoutedRequest.text``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRequest:
    """Properties of a request to a route.

    Attributes:
        request_id: the gateway's own.
        text: of the last message of the user, or of the prompt; its end, at most ``MOST_TEXT``
            characters. Empty for a prompt of token ids.
        num_chars: characters of all messages or prompts; token ids count four each.
        num_messages: messages of the conversation; 1 for a prompt.
        num_tools: tools that the model may call.
        max_tokens: maximum length of an answer; None for the rest of the context.
        priority: ``Priority`` as a number.
        tenant: owner of the key; ``default`` without tenants.
        key_id: id of the API key; empty without one.
        conversation: the client's own name for requests with a common prefix
            (``prompt_cache_key``); empty without one.
        needs_json: whether the output has to follow a schema or grammar.
        needs_logprobs: whether log-probabilities are requested.
    """

    request_id: str
    text: str
    num_chars: int
    num_messages: int = 1
    num_tools: int = 0
    max_tokens: int | None = None
    priority: int = 1
    tenant: str = "default"
    key_id: str = ""
    conversation: str = ""
    needs_json: bool = False
    needs_logprobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateView:
    """One target of the route.

    Attributes:
        name: of the model.
        is_local: whether engines of this daemon serve it.
        is_ready: whether a request sent now would be served.
        queue_seconds: wait of the last admitted request; 0 while none waits.
        has_room: whether its queue accepts another request.
        input_price: price of a million prompt tokens; None if none is configured.
        output_price: price of a million generated tokens; None if none is configured.
        quality: 0 to 1, as configured; None if it is not.
        context_length: in tokens; None while the model was never loaded.
    """

    name: str
    is_local: bool = True
    is_ready: bool = True
    queue_seconds: float = 0.0
    has_room: bool = True
    input_price: float | None = None
    output_price: float | None = None
    quality: float | None = None
    context_length: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of a router about one request.

    Attributes:
        order: names of candidates in the order in which they are tried, at least one, each once.
        reason: one short sentence for operators, without content of the request.
        scores: a number for each candidate that was scored; higher is better for this router.
        retry_on: failures, of ``FAILURES``, after which the next target is tried.
        is_judged: whether ``judge`` sees the answer of every target but the last before it is sent.
        samples: number of further answers that are sampled for an answer that ``judge`` has
            accepted, which it then judges again with these as ``others``; none for a request for
            several choices, which are compared with each other.
    """

    order: Sequence[str]
    reason: str
    scores: Mapping[str, float] = field(default_factory=dict)
    retry_on: Sequence[str] = FAILURES
    is_judged: bool = False
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """A whole answer that the client has not received.

    Attributes:
        target: name of the model.
        text: of the first choice, as generated, with its tool calls; of another server, the names
            and arguments of calls.
        num_tokens: of the first choice.
        finish_reason: ``stop``, ``length``, ``tool_calls`` or ``content_filter``.
        mean_logprob: mean log-probability of its tokens; None without any, as of a server that
            reports none.
        others: texts of the further choices, or of sampled answers.
        request: that it answers.
    """

    target: str
    text: str
    num_tokens: int
    finish_reason: str
    mean_logprob: float | None
    others: Sequence[str]
    request: RoutedRequest


@dataclass(frozen=True, slots=True)
class AttemptVerdict:
    """Judgement of an answer.

    Attributes:
        is_accepted: whether it is sent; otherwise the next target answers.
        reason: one short sentence for operators, without content of the answer.
        score: on which it is based; None without one.
    """

    is_accepted: bool
    reason: str
    score: float | None = None


class ModelRouterStrategy(Strategy, Protocol):
    """Orders the targets of a route for every request."""

    def open(self, resources: GatewayResources) -> None:
        """Read the name of the route, ``resources.model``."""

    def route(self, request: RoutedRequest, candidates: Sequence[CandidateView]) -> Decision:
        """Order the targets.

        Args:
            request: the request to route.
            candidates: the route's targets, at least one, in the configured order.
        """


class JudgingModelRouter(ModelRouterStrategy, Protocol):
    """Optional part: judges answers before they are sent."""

    def judge(self, attempt: AttemptView) -> AttemptVerdict:
        """Accept an answer, or have the next target answer."""
