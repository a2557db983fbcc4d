"""Request fields common to chat and text completions."""

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
    """Options of a streamed response."""

    include_usage: Annotated[
        bool | None, Field(description="Send a last chunk with the token usage.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, Field(description="Send the token usage so far with every chunk.")
    ] = None
    include_obfuscation: Annotated[
        bool | None, Noted(), Field(description="Padding against traffic analysis; not sent.")
    ] = None


class KvRetention(RequestTable):
    """Retention of a request's pages in the prefix cache."""

    priority: int = Field(ge=0, le=100)
    seconds: Annotated[float, Field(gt=0, le=86400), OrNull()] = 300.0


class GenerationTable(RequestTable):
    """Fields common to chat and text completions."""

    model: Model
    max_tokens: Annotated[
        MaxTokens | None, Field(description="Maximum number of tokens to generate, at least 1.")
    ] = None
    min_tokens: Annotated[
        int,
        Field(
            ge=0, le=2**31 - 1, description="Minimum number of tokens to generate before a stop."
        ),
        OrNull(),
    ] = 0
    n: Annotated[
        Count | None,
        Costs("a sequence each; the prompt is computed once"),
        Field(description="Number of choices per prompt."),
    ] = None
    stream: Annotated[
        bool | None, Field(description="Stream the answer as server-sent events.")
    ] = None
    stream_options: Annotated[StreamOptions | None, Field(description="Only with `stream`.")] = None
    temperature: Annotated[
        Temperature | None,
        Field(
            description="Sampling temperature; 0 is greedy decoding. Applied before top-k, "
            "top-p and min-p."
        ),
    ] = None
    top_p: Annotated[
        TopP | None,
        Field(
            description="Nucleus sampling: sample from the most likely tokens of this "
            "total probability."
        ),
    ] = None
    top_k: Annotated[
        TopK | None,
        Field(description="Sample from this number of most likely tokens; 0 or -1: all."),
    ] = None
    min_p: Annotated[
        Share | None,
        Field(description="Minimum probability of a token relative to the most likely one."),
    ] = None
    frequency_penalty: Annotated[
        Penalty | None,
        Costs("a pass over the vocabulary for each token"),
        Field(description="Penalty per occurrence of a token in the answer."),
    ] = None
    presence_penalty: Annotated[
        Penalty | None,
        Costs("a pass over the vocabulary for each token"),
        Field(description="Penalty for tokens that occur in the answer, applied once."),
    ] = None
    repetition_penalty: Annotated[
        RepetitionPenalty | None,
        Costs("a pass over the vocabulary for each token"),
        Field(
            description="Multiplicative penalty of tokens of the prompt and answer; above "
            "1 discourages repetition."
        ),
    ] = None
    logit_bias: Annotated[
        Annotated[
            dict[str, Annotated[Finite, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)
        ]
        | None,
        at_most(MAX_BIASES),
        Field(description="Map from token id to a bias added to its logit."),
    ] = None
    seed: Annotated[
        Seed | None,
        Field(
            description="Seed of sampling; the answer is reproducible whatever else is in "
            "the batch."
        ),
    ] = None
    stop: Annotated[
        StopString | StopStrings | None,
        Costs("text is searched token by token"),
        Field(description="Stop strings that end the answer."),
    ] = None
    stop_token_ids: Annotated[
        list[TokenId] | None,
        Field(max_length=MAX_STOPS, description="Token ids that end the answer."),
    ] = None
    extra_args: Annotated[
        Annotated[dict[ExtraName, ExtraValue], Field(max_length=MAX_EXTRA_ARGS)] | None,
        at_most(MAX_EXTRA_ARGS),
        Field(description="Parameters of plugin logits processors, by name."),
    ] = None
    prompt_logprobs: Annotated[
        NumLogprobs | None,
        Costs("prefill of the whole prompt without the prefix cache, and its logits"),
        Field(
            description="Number of alternatives per prompt token, returned in "
            "`prompt_logprobs`; not with `stream`."
        ),
    ] = None
    ignore_eos: Annotated[
        bool, OrNull(), Field(description="Continue after the model's EOS token.")
    ] = False
    include_stop_str_in_output: Annotated[
        bool, OrNull(), Field(description="Include the stop string in the output.")
    ] = False
    skip_special_tokens: Annotated[
        bool, OrNull(), Field(description="Omit special tokens from the text.")
    ] = True
    return_token_ids: Annotated[
        bool | None,
        Costs("larger answers, written token by token"),
        Field(description="Return `prompt_token_ids` and `token_ids`."),
    ] = None
    priority: Annotated[
        Priority | PriorityNumber | None,
        Field(
            description="Priority class; overrides `service_tier`. Numbers below 0 are "
            "realtime, above 0 batch. A class above the tenant's `service_class` "
            "is refused with 403."
        ),
    ] = None
    service_tier: Annotated[
        ServiceTier | None,
        Field(
            description="`priority` and `fast` are realtime, `flex` is batch, others are "
            "standard. A class above the tenant's `service_class` is lowered to "
            "it, which chat answers report, and listed as ignored."
        ),
    ] = None
    queue_timeout: Annotated[
        QueueSeconds | None,
        Field(
            description="Maximum seconds in the queue, from arrival; then the request ends "
            "with 504 `queue_timeout`. Default: no limit.",
        ),
    ] = None
    kv_retention: Annotated[
        KvRetention | None,
        Field(
            description="Retention of the prompt in the prefix cache, for eviction "
            "`retention`: `priority` (required, 0 to 100, normal is 50) for "
            "`seconds` after its last use (above 0, at most 86400, default 300). "
            "A priority above 50 requires the tenant's `retention_priority` and "
            "`retention_seconds`, else 403."
        ),
    ] = None
    user: Annotated[
        str | None,
        Noted(),
        Field(max_length=512, description="Identifier of the end user; not used."),
    ] = None

    cache_salt: Annotated[
        CacheSalt | None,
        Costs("prefill of prompts that are cached under other salts only"),
        Field(
            description="Only requests with the same salt share cached prefixes; no `@`, `/`, `\\`."
        ),
    ] = None
    prompt_cache_key: Annotated[
        str | None,
        Field(
            max_length=1024,
            description="Routing key: requests with the same key go to the same engine if "
            "load permits; for router `prefix`.",
        ),
    ] = None
    prompt_cache_retention: Annotated[
        Literal["in_memory", "in-memory", "24h"] | None,
        Field(
            description="`24h` is a `kv_retention` of priority 75 for a day; `in_memory` is "
            "the default. `24h` is ignored, and listed as ignored, if the tenant "
            "is not allowed that retention."
        ),
    ] = None
    prompt_embeds: Annotated[Any, Unsupported("prompts are text or token ids")] = None
    use_beam_search: Annotated[Any, Unsupported("beam search is not supported", (None, False))] = (
        None
    )
    logits_processors: Annotated[
        Any, Unsupported("logits processors are plugins of the server", (None, []))
    ] = None
    bad_words: Annotated[Any, Unsupported("use `logit_bias`", (None, []))] = None
    allowed_token_ids: Annotated[Any, Unsupported("use `logit_bias`", (None, []))] = None
