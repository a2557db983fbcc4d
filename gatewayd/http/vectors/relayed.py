"""Preparation of embedding requests to upstreams: one request with all inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from gatewayd.catalogue.target import UpstreamTarget
from gatewayd.engines.api import EngineRequest, Relay
from gatewayd.http.asgi import encode_json
from gatewayd.http.openai.sampling import class_param_of, priority_of
from gatewayd.http.schema.embeddings import EmbeddingRequest
from gatewayd.pipeline.choice import ChoiceOptions
from gatewayd.pipeline.work import Work
from gatewayd.tenants.principal import Principal
from gatewayd.text.detokenizer import NoDetokenizer
from gatewayd.upstreams.counting import BYTES_PER_TOKEN
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_hooks.upstreams import UpstreamCall

if TYPE_CHECKING:
    from gatewayd.upstreams.fleet import UpstreamFleet

_PASSED = (
    *("encoding_format", "dimensions", "normalize", "pooling"),
    *("truncate_prompt_tokens", "truncation_side", "add_special_tokens"),
)
"""Fields that an upstream acts on, besides the input."""


def relayed_work(
    target: UpstreamTarget,
    request: EmbeddingRequest,
    *,
    request_id: str,
    endpoint: str,
    arrival: float,
    principal: Principal,
) -> Work:
    """Prepare a request for an upstream.

    Raises:
        InvalidRequest: the upstream has no embeddings.
    """
    # Its module, with an HTTP client, is imported only by daemons with upstreams.
    cast("UpstreamFleet", target.fleet).check_embeds(target.name)
    body: dict[str, Any] = {"model": target.model, "input": request.input}
    for name in _PASSED:
        value = getattr(request, name)
        if name in request.model_fields_set and value is not None:
            body[name] = value
    most, likely = _token_counts(request.input)
    options = ChoiceOptions(detokenizer=NoDetokenizer, wakes=False, discard=True)
    return Work(
        request_id=request_id,
        endpoint=endpoint,
        requests=[
            EngineRequest(
                request_id=request_id,
                prompt=range(most),
                params=SamplingParams(max_tokens=1, ignore_eos=True),
                priority=priority_of(request),
                class_param=class_param_of(request),
                relay=Relay(UpstreamCall("embedding", body), likely),
            )
        ],
        num_choices=1,
        options=options,
        arrival=arrival,
        principal=principal,
        model=request.model,
        # The request may name a route.
        charged_as=target.name,
    )


def _token_counts(given: str | list[str] | list[int] | list[list[int]]) -> tuple[int, int]:
    """Return the most and the likely tokens of an input: exactly, if it has token ids."""
    one = given[0]
    if not isinstance(given, str) and not isinstance(one, str):
        count = sum([1 if isinstance(part, int) else len(part) for part in given])
        return count, count
    # A token has at least one byte, and the encoding is longer than special tokens need.
    most = len(encode_json(given))
    return most, -(-most // BYTES_PER_TOKEN)
