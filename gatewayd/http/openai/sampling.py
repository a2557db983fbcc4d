"""From request fields to what engines and choices are told, with the rules across fields."""

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
"""Values of ``service_tier`` that mean the classes, as answers say them."""
A_DAY = (75, 86400.0)
"""Eviction priority, above the usual 50, and seconds of ``prompt_cache_retention`` ``24h``."""


class Classed(Protocol):
    """A request with a class of service."""

    @property
    def priority(self) -> str | int | None:
        """By name or number."""

    @property
    def service_tier(self) -> str | None:
        """OpenAI's name."""


class Salted(Protocol):
    """A request that may keep its cached prompt to itself."""

    @property
    def cache_salt(self) -> str | None:
        """The salt."""


def priority_of(request: Classed) -> Priority:
    """The class of service that a request asks for."""
    asked = request.priority
    if isinstance(asked, int):
        return Priority(Priority.STANDARD - (asked < 0) + (asked > 0))
    if asked is not None:
        return CLASSES[asked]
    return _TIERS.get(request.service_tier or "", Priority.STANDARD)


def class_param_of(request: Classed) -> str:
    """The field by which its class is changed."""
    return "service_tier" if request.priority is None else "priority"


def tier_of(request: Classed) -> str | None:
    """What the answer says of ``service_tier``, as OpenAI names it: the class that it got."""
    return None if request.service_tier is None else TIER_NAMES[priority_of(request)]


def retention_of(request: GenerationTable) -> tuple[int, float]:
    """Eviction priority of the request's pages, and for how many seconds it counts."""
    wish = request.kv_retention
    if wish is not None:
        return wish.priority, float(wish.seconds)
    return A_DAY if request.prompt_cache_retention == "24h" else (NORMAL_PRIORITY, 0.0)


def salt_of(request: Salted) -> bytes:
    """The prefix cache's salt: those who give none share what they computed."""
    salt = request.cache_salt
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
    """How many tokens to generate.

    Args:
        asked: by the request.
        default: where it asks for nothing; None for all that is left.
        prompt_len: tokens of the prompt, the longest one of several.
        context: tokens of the model's context.
        prompt_param: the field of the prompt, for the error.
        param: the field that asks, for the error.

    Raises:
        ContextLengthExceeded: the prompt, or prompt and answer, do not fit.
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
    """Refuse ids that the model does not have.

    Raises:
        InvalidRequest: one is negative or too large.
    """
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
    """Check the rules across fields and fill in the defaults.

    Args:
        request: the request.
        model: that is served.
        max_tokens: of an answer.
        logprobs: see ``SamplingParams``.
        prompt_logprobs: the same.
        guide: what the answer must follow, checked.
        behind: the marks of the reasoning behind which it must.
        may_be_shorter: whether ``max_tokens`` is what is left, and not what was asked for.

    Raises:
        InvalidRequest: two fields do not fit together, or an id is not in the vocabulary.
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
    """What the choices of a request need to know.

    Args:
        request: the request.
        tokenizer: of the model.
        continues: whether the answer goes on where the prompt's text ends.
        discard: whether the prompt alone is wanted.
        prefix: what is put before the text.
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
