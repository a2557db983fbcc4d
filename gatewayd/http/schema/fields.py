"""What a request field is: its type, its bounds, and how far it is served.

A field of a request model is one of four things. Plain fields act. ``Noted`` ones are taken and
change nothing, by their nature. ``Ignored`` ones would matter elsewhere; the answer names them in
a header. ``Unsupported`` ones are refused unless they ask for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError

from gatewayd.http.schema.nulls import OrNull


@dataclass(frozen=True, slots=True)
class Noted:
    """Taken; has no effect on the answer by its nature."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """Taken and not acted on; ``x-gateway-ignored-params`` names it.

    Attributes:
        neutral: values that ask for nothing and are not named.
    """

    neutral: tuple[Any, ...] = (None,)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Refused.

    Attributes:
        reason: completes "<field> is not supported: ".
        neutral: values that ask for nothing and are accepted.
    """

    reason: str
    neutral: tuple[Any, ...] = (None,)


Mark = Noted | Ignored | Unsupported


@dataclass(frozen=True, slots=True)
class Costs:
    """What asking for a field costs, beside the tokens themselves; a few words."""

    what: str


class RequestTable(BaseModel):
    """Base of the request models: JSON types are not converted, unknown fields are kept aside."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    unsupported: ClassVar[dict[str, Unsupported]]
    ignored: ClassVar[dict[str, Ignored]]
    known: ClassVar[frozenset[str]]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - pydantic's
        """Collect the marks."""
        cls.unsupported, cls.ignored = {}, {}
        for name, info in cls.model_fields.items():
            for mark in info.metadata:
                if isinstance(mark, Unsupported):
                    cls.unsupported[name] = mark
                elif isinstance(mark, Ignored):
                    cls.ignored[name] = mark
        cls.known = frozenset(cls.model_fields)


def cost_of(table: type[RequestTable], name: str) -> str:
    """What asking for a field costs; empty for nothing to speak of."""
    costs = [mark.what for mark in table.model_fields[name].metadata if isinstance(mark, Costs)]
    return costs[0] if costs else ""


def support_of(table: type[RequestTable], name: str) -> Mark | None:
    """The mark of a field, or None for one that acts."""
    for mark in table.model_fields[name].metadata:
        if isinstance(mark, Noted | Ignored | Unsupported):
            return mark
    return None


MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_BIASES = 1024
MAX_PROMPTS = 128
MAX_IDS = 2**20
MAX_SEED = 2**63 - 1
MAX_EXTRA_ARGS = 16
MAX_METADATA = 16
MAX_INT = 2**63 - 1


def at_most(limit: int) -> BeforeValidator:
    """Refuse an object with more entries before they are looked at one by one."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > limit:
            context = {
                "field_type": "Object",
                "max_length": limit,
                "actual_length": len(value),
            }
            raise PydanticKnownError("too_long", context)
        return value

    return BeforeValidator(check)


Model = Annotated[str, Field(min_length=1, max_length=256, description="A served model's name.")]
Count = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
MaxTokens = Annotated[int, Field(ge=0, le=MAX_INT)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
# A list of millions that are all wrong would otherwise be told of each of them.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_IDS)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
ExtraName = Annotated[str, Field(min_length=1, max_length=64)]
ExtraValue = bool | int | Finite | Annotated[str, Field(max_length=256)]
Priority = Literal["realtime", "standard", "batch"]
PriorityNumber = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
CacheSalt = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]*$")]
ServiceTier = Literal["auto", "default", "standard", "scale", "flex", "priority", "fast"]


class StreamOptions(RequestTable):
    """How to stream."""

    include_usage: Annotated[
        bool | None, Field(description="Send a last chunk with the usage.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, Field(description="Send the usage so far with every chunk.")
    ] = None
    include_obfuscation: Annotated[
        bool | None, Noted(), Field(description="Padding against traffic analysis; none is sent.")
    ] = None


class KvRetention(RequestTable):
    """How long cached pages of a request are wanted."""

    priority: int = Field(ge=0, le=100)
    seconds: Annotated[float, Field(gt=0, le=86400), OrNull()] = 300.0


class GenerationTable(RequestTable):
    """What chat and plain completions have in common."""

    model: Model
    max_tokens: Annotated[
        MaxTokens | None, Field(description="Most tokens to generate, at least 1.")
    ] = None
    min_tokens: Annotated[
        int, Field(ge=0, le=2**31 - 1, description="Tokens before an end is allowed."), OrNull()
    ] = 0
    n: Annotated[
        Count | None,
        Costs("a sequence each; the prompt is computed once"),
        Field(description="Choices for each prompt."),
    ] = None
    stream: Annotated[bool | None, Field(description="Answer with server-sent events.")] = None
    stream_options: Annotated[StreamOptions | None, Field(description="Only with `stream`.")] = None
    temperature: Annotated[
        Annotated[Finite, Field(ge=0, le=2)] | None,
        Field(description="0 always takes the most likely token; acts before top-k, top-p, min-p."),
    ] = None
    top_p: Annotated[
        Annotated[Finite, Field(ge=0, le=1)] | None,
        Field(description="Sample among the most likely tokens of this mass; 0: the first alone."),
    ] = None
    top_k: Annotated[
        Annotated[int, Field(ge=-1, le=2**31 - 1)] | None,
        Field(description="Sample among this many tokens; 0 or -1 for all."),
    ] = None
    min_p: Annotated[
        Annotated[Finite, Field(ge=0, le=1)] | None,
        Field(description="Least probability as a share of the largest."),
    ] = None
    frequency_penalty: Annotated[
        Annotated[Finite, Field(ge=-2, le=2)] | None,
        Costs("a pass over the vocabulary for each token"),
        Field(description="Per occurrence of a token in the answer."),
    ] = None
    presence_penalty: Annotated[
        Annotated[Finite, Field(ge=-2, le=2)] | None,
        Costs("a pass over the vocabulary for each token"),
        Field(description="Once for a token in the answer."),
    ] = None
    repetition_penalty: Annotated[
        Annotated[Finite, Field(gt=0, le=10)] | None,
        Costs("a pass over the vocabulary for each token"),
        Field(description="Divides likely, multiplies unlikely tokens of prompt and answer."),
    ] = None
    logit_bias: Annotated[
        Annotated[
            dict[str, Annotated[Finite, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)
        ]
        | None,
        at_most(MAX_BIASES),
        Field(description="Token id to addend."),
    ] = None
    seed: Annotated[
        Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None,
        Field(description="Repeats the answer, whatever else the engine computes."),
    ] = None
    stop: Annotated[
        StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None,
        Costs("text is searched token by token"),
        Field(description="Strings that end the answer."),
    ] = None
    stop_token_ids: Annotated[
        list[TokenId] | None,
        Field(max_length=MAX_STOPS, description="Tokens that end the answer."),
    ] = None
    extra_args: Annotated[
        Annotated[dict[ExtraName, ExtraValue], Field(max_length=MAX_EXTRA_ARGS)] | None,
        at_most(MAX_EXTRA_ARGS),
        Field(description="Parameters for logits processors that are plugins, by name."),
    ] = None
    prompt_logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None,
        Costs("the whole prompt, none of it from the cache, and its logits"),
        Field(
            description="Alternatives for each prompt token, told in `prompt_logprobs`; not with "
            "`stream`."
        ),
    ] = None
    ignore_eos: Annotated[
        bool, OrNull(), Field(description="Go on after the model's end token.")
    ] = False
    include_stop_str_in_output: Annotated[
        bool, OrNull(), Field(description="Keep the stop string in the text.")
    ] = False
    skip_special_tokens: Annotated[
        bool, OrNull(), Field(description="Leave special tokens out of the text.")
    ] = True
    return_token_ids: Annotated[
        bool | None,
        Costs("larger answers, written token by token"),
        Field(description="Add `prompt_token_ids` and `token_ids`."),
    ] = None
    priority: Annotated[
        Priority | PriorityNumber | None,
        Field(
            description="Class of service; over `service_tier`. Of numbers, those below 0 are "
            "realtime, those above it batch."
        ),
    ] = None
    service_tier: Annotated[
        ServiceTier | None,
        Field(description="`priority`, `fast` are realtime; `flex` is batch; the others standard."),
    ] = None
    kv_retention: Annotated[
        KvRetention | None,
        Field(
            description="How long the prompt's cache is wanted: `priority`, required, from 0 to "
            "100 (50 is usual) for `seconds` after its last use, over 0 and at most 86400 (300 "
            "without it); for eviction `retention`."
        ),
    ] = None
    user: Annotated[str | None, Noted(), Field(max_length=512, description="The end user.")] = None

    cache_salt: Annotated[
        CacheSalt | None,
        Costs("the prompt, where only requests of other salts have computed it"),
        Field(
            description="Only requests with the same salt share cached prompts; no `@`, `/`, `\\`."
        ),
    ] = None
    prompt_cache_key: Annotated[
        str | None,
        Field(
            max_length=1024,
            description="Requests of one key go to the engine that served it before, as far as "
            "load permits; for router `prefix`.",
        ),
    ] = None
    prompt_cache_retention: Annotated[
        Literal["in_memory", "in-memory", "24h"] | None,
        Field(
            description="`24h` is a `kv_retention` of priority 75 for a day; `in_memory` the usual."
        ),
    ] = None
    prompt_embeds: Annotated[Any, Unsupported("prompts are text or token ids")] = None
    use_beam_search: Annotated[Any, Unsupported("answers are sampled", (None, False))] = None
    logits_processors: Annotated[Any, Unsupported("they are plugins of the server", (None, []))] = (
        None
    )
    bad_words: Annotated[Any, Unsupported("use `logit_bias`", (None, []))] = None
    allowed_token_ids: Annotated[Any, Unsupported("use `logit_bias`", (None, []))] = None
