"""What chat and plain completions have in common: how to generate, and how to answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gatewayd_hooks.requests.fields import (
    MAX_BIASES,
    MAX_EXTRA_ARGS,
    MAX_STOPS,
    CacheSalt,
    Count,
    ExtraName,
    ExtraValue,
    Finite,
    MaxTokens,
    Model,
    NumLogprobs,
    Penalty,
    Priority,
    PriorityNumber,
    QueueSeconds,
    RepetitionPenalty,
    Seed,
    ServiceTier,
    Share,
    StopString,
    StopStrings,
    Temperature,
    TokenId,
    TopK,
    TopP,
)
from gatewayd_hooks.requests.tables import Costs, Noted, OrNull, RequestTable, Unsupported, at_most


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
        Temperature | None,
        Field(description="0 always takes the most likely token; acts before top-k, top-p, min-p."),
    ] = None
    top_p: Annotated[
        TopP | None,
        Field(description="Sample among the most likely tokens of this mass."),
    ] = None
    top_k: Annotated[
        TopK | None,
        Field(description="Sample among this many tokens; 0 or -1 for all."),
    ] = None
    min_p: Annotated[
        Share | None,
        Field(description="Least probability as a share of the largest."),
    ] = None
    frequency_penalty: Annotated[
        Penalty | None,
        Costs("a pass over the vocabulary for each token"),
        Field(description="Per occurrence of a token in the answer."),
    ] = None
    presence_penalty: Annotated[
        Penalty | None,
        Costs("a pass over the vocabulary for each token"),
        Field(description="Once for a token in the answer."),
    ] = None
    repetition_penalty: Annotated[
        RepetitionPenalty | None,
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
        Seed | None,
        Field(description="Repeats the answer, whatever else the engine computes."),
    ] = None
    stop: Annotated[
        StopString | StopStrings | None,
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
        NumLogprobs | None,
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
            "realtime, those above it batch. One above the tenant's `service_class` is 403."
        ),
    ] = None
    service_tier: Annotated[
        ServiceTier | None,
        Field(
            description="`priority`, `fast` are realtime; `flex` is batch; the others standard. "
            "One above the tenant's `service_class` is served in that class, which a chat's answer "
            "says, and named as ignored."
        ),
    ] = None
    queue_timeout: Annotated[
        QueueSeconds | None,
        Field(
            description="Seconds from its arrival after which a request with which no engine has "
            "begun ends as 504 `queue_timeout`. It waits for ever without.",
        ),
    ] = None
    kv_retention: Annotated[
        KvRetention | None,
        Field(
            description="How long the prompt's cache is wanted: `priority`, required, from 0 to "
            "100 (50 is usual) for `seconds` after its last use, over 0 and at most 86400 (300 "
            "without it); for eviction `retention`. A priority over 50 needs the tenant's "
            "`retention_priority` and `retention_seconds`, else 403."
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
            description="`24h` is a `kv_retention` of priority 75 for a day; `in_memory` the "
            "usual, as is `24h` where the tenant was not granted that, named as ignored."
        ),
    ] = None
    prompt_embeds: Annotated[Any, Unsupported("prompts are text or token ids")] = None
    use_beam_search: Annotated[Any, Unsupported("answers are sampled", (None, False))] = None
    logits_processors: Annotated[Any, Unsupported("they are plugins of the server", (None, []))] = (
        None
    )
    bad_words: Annotated[Any, Unsupported("use `logit_bias`", (None, []))] = None
    allowed_token_ids: Annotated[Any, Unsupported("use `logit_bias`", (None, []))] = None
