"""Conversion of request fields to sampling parameters and choice options."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from gatewayd.errors import ContextLengthExceeded, InvalidRequest
from gatewayd.http.schema.generation import GenerationTable
from gatewayd.pipeline.choice import ChoiceOptions
from gatewayd.tenants.grants import CLASSES
from gatewayd.text.tokenizer import Tokenizer
from gatewayd_engine.process.messages import ModelInfo, SamplingParams
from gatewayd_hooks.caching import NORMAL_PRIORITY
from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.parsing import Bounds
from gatewayd_hooks.scheduling import Priority

_TIERS = {"priority": Priority.REALTIME, "fast": Priority.REALTIME, "flex": Priority.BATCH}
TIER_NAMES = {
    Priority.REALTIME: "priority",
    Priority.STANDARD: "default",
    Priority.BATCH: "flex",
}
"""Values of ``service_tier`` for the priority classes, as in responses."""
A_DAY = (75, 86400.0)
"""Eviction priority, above the default 50, and seconds of ``prompt_cache_retention`` ``24h``."""


class HasPriority(Protocol):
    """Request with a priority class."""

    @property
    def priority(self) -> str | int | None:
        """Priority class by name or number."""

    @property
    def service_tier(self) -> str | None:
        """OpenAI's service tier."""


class HasCacheSalt(Protocol):
    """Request with an optional salt that isolates its cached prompt."""

    @property
    def cache_salt(self) -> str | None:
        """Salt of the prefix cache."""


def priority_of(request: HasPriority) -> Priority:
    """Return the priority class that a request asks for."""
    asked = request.priority
    if isinstance(asked, int):
        # As in vLLM, a lower number is more urgent.
        return Priority(Priority.STANDARD - (asked < 0) + (asked > 0))
    if asked is not None:
        return CLASSES[asked]
    return _TIERS.get(request.service_tier or "", Priority.STANDARD)


def class_param_of(request: HasPriority) -> str:
    """Return the field that sets the priority class, for errors."""
    return "service_tier" if request.priority is None else "priority"


def tier_of(request: HasPriority) -> str | None:
    """Return the ``service_tier`` of the response: the effective class in OpenAI's terms."""
    return None if request.service_tier is None else TIER_NAMES[priority_of(request)]


def retention_of(request: GenerationTable) -> tuple[int, float]:
    """Return the eviction priority of the request's KV pages and its duration in seconds."""
    retention = request.kv_retention
    if retention is not None:
        return retention.priority, float(retention.seconds)
    return A_DAY if request.prompt_cache_retention == "24h" else (NORMAL_PRIORITY, 0.0)


def salt_of(request: HasCacheSalt) -> bytes:
    """Return the prefix cache's salt; requests without one share their prefixes."""
    salt = request.cache_salt
    # A fixed size, however long the client's text is.
    return b"" if salt is None else blake2b(salt.encode(), digest_size=16).digest()


def fit_max_tokens(
    asked: int | None,
    default: int | None,
    prompt_len: int,
    context: int,
    *,
    prompt_param: str,
    param: str = "max_tokens",
) -> int:
    """Return the maximum number of tokens to generate.

    Args:
        asked: requested maximum, or None.
        default: maximum if none is requested; None for the rest of the context.
        prompt_len: tokens of the prompt, the longest one of several.
        context: the model's context length in tokens.
        prompt_param: the field of the prompt, for the error.
        param: the field of the maximum, for the error.

    Raises:
        ContextLengthExceeded: the prompt, or prompt and completion, exceed the context.
    """
    left = context - prompt_len
    if left < 1:
        raise ContextLengthExceeded(
            f"the prompt has {prompt_len} tokens; the model's context is {context} and one must "
            f"be left for the answer: shorten the prompt by {1 - left}",
            param=prompt_param,
        )
    if asked is None:
        return left if default is None else min(default, left)
    if asked > left:
        raise ContextLengthExceeded(
            f"the prompt has {prompt_len} tokens and {param} is {asked}, together "
            f"{prompt_len + asked}; the model's context is {context}: ask for at most {left} "
            "or shorten the prompt",
            param=param,
        )
    return asked


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Check that token ids are in the vocabulary.

    Raises:
        InvalidRequest: one is negative or too large.
    """
    # `max` and `min` run in C; the search is for the message only.
    if ids and (max(ids) >= vocab_size or min(ids) < 0):
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        raise InvalidRequest(
            f"{param} has the token id {wrong}; the vocabulary ends at {vocab_size - 1}",
            param=param,
        )


def sampling_params(
    request: GenerationTable,
    model: ModelInfo,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    guide: GuideSpec | None = None,
    behind: Bounds | None = None,
    may_be_shorter: bool = False,
) -> SamplingParams:
    """Validate rules across fields and build the sampling parameters.

    Args:
        request: the request.
        model: the served model.
        max_tokens: of each choice.
        logprobs: see ``SamplingParams``.
        prompt_logprobs: see ``SamplingParams``.
        guide: checked grammar that constrains the output.
        behind: delimiters of the reasoning, after which the grammar applies.
        may_be_shorter: whether ``max_tokens`` is the rest of the context, not a requested value.

    Raises:
        InvalidRequest: two fields are inconsistent, or an id is not in the vocabulary.
    """
    if request.min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {request.min_tokens}; the answer may have {max_tokens} tokens",
            param="min_tokens",
        )
    stop_ids = request.stop_token_ids or []
    if stop_ids:
        check_ids(stop_ids, model.vocab_size, "stop_token_ids")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        temperature=1.0 if request.temperature is None else float(request.temperature),
        # -1 means all tokens, as 0 does.
        top_k=max(0, request.top_k or 0),
        top_p=float(request.top_p or 1.0),
        min_p=float(request.min_p or 0.0),
        frequency_penalty=float(request.frequency_penalty or 0.0),
        presence_penalty=float(request.presence_penalty or 0.0),
        repetition_penalty=float(request.repetition_penalty or 1.0),
        seed=request.seed,
        ignore_eos=request.ignore_eos,
        logit_bias=_biases(request.logit_bias, model.vocab_size),
        stop_token_ids=stop_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        extra=request.extra_args or {},
        guide=guide,
        guide_behind=None if guide is None else behind,
        may_be_shorter=may_be_shorter,
    )


def choice_options(
    request: GenerationTable,
    tokenizer: Tokenizer,
    *,
    continues: bool = False,
    discard: bool = False,
    prefix: str = "",
) -> ChoiceOptions:
    """Build the options of a request's choices.

    Args:
        request: the request.
        tokenizer: of the model.
        continues: whether the output continues the prompt's text.
        discard: whether only the prompt is of interest, so that output is discarded.
        prefix: text to put before the output.
    """
    stop = request.stop
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    skip_special = request.skip_special_tokens
    return ChoiceOptions(
        detokenizer=lambda: tokenizer.detokenizer(skip_special=skip_special, continues=continues),
        stop=stops,
        include_stop=request.include_stop_str_in_output,
        min_tokens=request.min_tokens,
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        keep_ids=bool(request.return_token_ids),
        wakes=bool(request.stream),
        discard=discard,
        prefix=prefix,
    )


def _biases(biases: dict[str, float] | None, vocab_size: int) -> list[tuple[int, float]]:
    if not biases:
        return []
    found = []
    for key, value in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab_size):
            raise InvalidRequest(
                f"logit_bias has the key {key[:32]!r}; keys are token ids, 0 to {vocab_size - 1}",
                param="logit_bias",
            )
        found.append((int(key), float(value)))
    return found
