"""The table of ``options``, and of what all requests that generate have in common."""

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
    """JSON does not tell 1.0 from 1, nor does Ollama."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _some(value: object) -> object:
    """What is empty is nothing: some clients send every field that they know."""
    return None if value in ("", [], {}) else value


Whole = BeforeValidator(_whole)
OrEmpty = BeforeValidator(_some)
Idle = Annotated[Any, Ignored()]
_PASS = Costs("a pass over the vocabulary for each token")
_ENDLESS = "Most tokens to generate, no more than the context has left; not above 0: no bound."


class Options(RequestTable):
    """How to generate; those that are about loading a model change nothing."""

    num_predict: Annotated[
        Annotated[int, Field(ge=-(2**31), le=MAX_INT)] | None, Whole, Field(description=_ENDLESS)
    ] = None
    temperature: Annotated[
        Temperature | None, Field(description="0 always takes the most likely token.")
    ] = None
    top_k: Annotated[
        TopK | None, Whole, Field(description="Sample among this many tokens; 0 or -1 for all.")
    ] = None
    top_p: Annotated[
        TopP | None, Field(description="Sample among the most likely tokens of this mass.")
    ] = None
    min_p: Annotated[
        Share | None, Field(description="Least probability as a share of the largest.")
    ] = None
    seed: Annotated[Seed | None, Whole, Field(description="Repeats the answer.")] = None
    stop: Annotated[
        StopString | StopStrings | None,
        OrEmpty,
        Costs("text is searched token by token"),
        Field(description="Strings that end the answer."),
    ] = None
    repeat_penalty: Annotated[
        RepetitionPenalty | None,
        _PASS,
        Field(description="Divides likely, multiplies unlikely tokens of prompt and answer."),
    ] = None
    presence_penalty: Annotated[
        Penalty | None, _PASS, Field(description="Once for a token in the answer.")
    ] = None
    frequency_penalty: Annotated[
        Penalty | None, _PASS, Field(description="Per occurrence of a token in the answer.")
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
    """What ``/api/chat`` and ``/api/generate`` have in common."""

    model: Annotated[Model, Field(description="A served model's name; `:latest` may be added.")]
    stream: Annotated[
        bool | None, Field(description="Lines of JSON as they come; default: true.")
    ] = None
    format: Annotated[
        Literal["json"] | Schema | None,
        OrEmpty,
        Costs("a grammar to compile, and a mask of the vocabulary for each token"),
        Field(description="What the answer is: JSON, or JSON of a schema."),
    ] = None
    options: Annotated[Options | None, OrEmpty] = None
    think: Annotated[
        bool | Literal["low", "medium", "high", "max"] | None,
        Field(
            description="False leaves out what the model thinks; its template is told of it, and "
            "of how much."
        ),
    ] = None
    logprobs: Annotated[
        bool | None, Field(description="Give the log-probability of each token.")
    ] = None
    top_logprobs: Annotated[
        NumLogprobs | None,
        Costs("a sort of the vocabulary for each token"),
        Field(description="Alternatives for each token; needs `logprobs`."),
    ] = None
    keep_alive: Annotated[Any, Ignored(), Field(description="The model stays.")] = None
    shift: Idle = None
    truncate: Idle = None
