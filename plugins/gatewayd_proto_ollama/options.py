"""Table of ``options``, and of fields that all generation requests share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gatewayd_hooks.requests.fields import (
    MAX_INT,
    Model,
    NumLogprobs,
    Penalty,
    RepetitionPenalty,
    Schema,
    Seed,
    Share,
    StopString,
    StopStrings,
    Temperature,
    TopK,
    TopP,
)
from gatewayd_hooks.requests.tables import Costs, Ignored, RequestTable


def _whole(value: object) -> object:
    """Convert 1.0 to 1: JSON does not distinguish them, nor does Ollama."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _some(value: object) -> object:
    """Convert empty values to None: some clients send every field that they know."""
    return None if value in ("", [], {}) else value


Whole = BeforeValidator(_whole)
OrEmpty = BeforeValidator(_some)
Idle = Annotated[Any, Ignored()]
_PASS = Costs("a pass over the vocabulary for each token")
_ENDLESS = "Maximum number of tokens to generate, limited by the context; 0 or less: no limit."


class Options(RequestTable):
    """Generation options; those about loading a model have no effect."""

    num_predict: Annotated[
        Annotated[int, Field(ge=-(2**31), le=MAX_INT)] | None, Whole, Field(description=_ENDLESS)
    ] = None
    temperature: Annotated[
        Temperature | None, Field(description="Sampling temperature; 0 is greedy decoding.")
    ] = None
    top_k: Annotated[
        TopK | None,
        Whole,
        Field(description="Sample from this many most likely tokens; 0 or -1: all."),
    ] = None
    top_p: Annotated[
        TopP | None,
        Field(description="Sample from the most likely tokens of this total probability."),
    ] = None
    min_p: Annotated[
        Share | None, Field(description="Minimum probability relative to the most likely token.")
    ] = None
    seed: Annotated[Seed | None, Whole, Field(description="Makes sampling reproducible.")] = None
    stop: Annotated[
        StopString | StopStrings | None,
        OrEmpty,
        Costs("text is searched token by token"),
        Field(description="Strings that end the answer."),
    ] = None
    repeat_penalty: Annotated[
        RepetitionPenalty | None,
        _PASS,
        Field(description="Penalty on tokens that occur in prompt or answer; 1 is off."),
    ] = None
    presence_penalty: Annotated[
        Penalty | None, _PASS, Field(description="Subtracted once for a token in the answer.")
    ] = None
    frequency_penalty: Annotated[
        Penalty | None,
        _PASS,
        Field(description="Subtracted per occurrence of a token in the answer."),
    ] = None
    embedding_only: Idle = None
    f16_kv: Idle = None
    logits_all: Idle = None
    low_vram: Idle = None
    main_gpu: Idle = None
    mirostat: Idle = None
    mirostat_eta: Idle = None
    mirostat_tau: Idle = None
    num_batch: Idle = None
    num_ctx: Idle = None
    num_gpu: Idle = None
    num_keep: Idle = None
    num_thread: Idle = None
    numa: Idle = None
    penalize_newline: Idle = None
    repeat_last_n: Idle = None
    tfs_z: Idle = None
    typical_p: Idle = None
    use_mlock: Idle = None
    use_mmap: Idle = None
    vocab_only: Idle = None


class AnswerTable(RequestTable):
    """Fields that ``/api/chat`` and ``/api/generate`` share."""

    model: Annotated[Model, Field(description="A served model's name; `:latest` may be added.")]
    stream: Annotated[bool | None, Field(description="Stream lines of JSON; default: true.")] = None
    format: Annotated[
        Literal["json"] | Schema | None,
        OrEmpty,
        Costs("a grammar to compile, and a mask of the vocabulary for each token"),
        Field(description="Constrain the answer to JSON, or to JSON of a schema."),
    ] = None
    options: Annotated[Options | None, OrEmpty] = None
    think: Annotated[
        bool | Literal["low", "medium", "high", "max"] | None,
        Field(
            description="Whether reasoning is included, and how much; passed to the chat template."
        ),
    ] = None
    logprobs: Annotated[
        bool | None, Field(description="Return the log-probability of each token.")
    ] = None
    top_logprobs: Annotated[
        NumLogprobs | None,
        Costs("a sort of the vocabulary for each token"),
        Field(description="Alternatives for each token; needs `logprobs`."),
    ] = None
    keep_alive: Annotated[Any, Ignored(), Field(description="The model stays loaded.")] = None
    shift: Idle = None
    truncate: Idle = None
