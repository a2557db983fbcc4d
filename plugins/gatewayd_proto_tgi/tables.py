"""Tables of request bodies of the generate API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gatewayd_hooks.requests.fields import (
    MAX_CHOICES,
    MAX_INT,
    Finite,
    NumLogprobs,
    Penalty,
    RepetitionPenalty,
    Schema,
    Share,
    StopStrings,
    TopP,
)
from gatewayd_hooks.requests.tables import Costs, Ignored, RequestTable, Unsupported

_PASS = Costs("a pass over the vocabulary for each token")
_SORT = Costs("a sort of the vocabulary for each token")


class TgiGrammar(RequestTable):
    """Constraint on the answer."""

    type: Literal["json", "regex", "json_schema"]
    value: Annotated[
        Schema | Annotated[str, Field(min_length=1)],
        Field(
            description="`json`: a JSON Schema, as an object or its text; `json_schema`: an object "
            "with a `schema`; `regex`: a regular expression."
        ),
    ]


class TgiParameters(RequestTable):
    """Parameters of a generation."""

    max_new_tokens: Annotated[
        Annotated[int, Field(ge=1, le=MAX_INT)] | None,
        Field(description="Maximum number of tokens; default: `[protocol.tgi] max_new_tokens`."),
    ] = None
    do_sample: Annotated[
        bool | None,
        Field(
            description="Sample; also implied by a `temperature` other than 1, by `top_k` and by "
            "`top_p` below 1. Otherwise decoding is greedy."
        ),
    ] = None
    temperature: Annotated[
        Annotated[Finite, Field(ge=0, le=2)] | None,
        Field(description="Sampling temperature; 0 is greedy decoding."),
    ] = None
    top_k: Annotated[
        Annotated[int, Field(ge=1, le=2**31 - 1)] | None,
        Field(description="Sample from this number of most likely tokens."),
    ] = None
    top_p: Annotated[
        TopP | None,
        Field(description="Sample from the most likely tokens of this total probability."),
    ] = None
    typical_p: Annotated[Share | None, Unsupported("use `top_p` or `top_k`", (None, 1, 1.0))] = None
    repetition_penalty: Annotated[
        RepetitionPenalty | None,
        _PASS,
        Field(description="Penalty on tokens that occur in prompt or answer; 1 is off."),
    ] = None
    frequency_penalty: Annotated[
        Penalty | None,
        _PASS,
        Field(description="Subtracted per occurrence of a token in the answer; 0 is off."),
    ] = None
    stop: Annotated[
        StopStrings | None,
        Costs("text is searched token by token"),
        Field(description="Strings that end the answer, which contains them."),
    ] = None
    seed: Annotated[
        Annotated[int, Field(ge=0, le=MAX_INT)] | None,
        Field(description="Makes sampling reproducible; random by default, see `details.seed`."),
    ] = None
    best_of: Annotated[
        Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None,
        Costs("a sequence each; the prompt is computed once"),
        Field(
            description="Sample this number of answers; the one with the highest mean "
            "log-probability is returned, the others in `details.best_of_sequences`."
        ),
    ] = None
    details: Annotated[
        bool | None, Field(description="Return tokens, the finish reason and the seed.")
    ] = None
    decoder_input_details: Annotated[
        bool | None,
        Costs("prefill of the whole prompt without the prefix cache, and its logits"),
        Field(description="Return the prompt's tokens in `details.prefill`; not with a stream."),
    ] = None
    top_n_tokens: Annotated[
        NumLogprobs | None,
        _SORT,
        Field(description="Return this number of most likely tokens at each position."),
    ] = None
    return_full_text: Annotated[
        bool | None, Field(description="Prepend the prompt to `generated_text`.")
    ] = None
    grammar: Annotated[
        TgiGrammar | None,
        Costs("a grammar to compile, and a mask of the vocabulary for each token"),
        Field(description="Constrain the answer to JSON or to a regular expression."),
    ] = None
    truncate: Annotated[
        Annotated[int, Field(ge=1, le=MAX_INT)] | None,
        Field(description="Keep only this number of the last tokens of a longer prompt."),
    ] = None
    watermark: Annotated[
        Any, Unsupported("the operator marks all answers, or none", (None, False))
    ] = None
    adapter_id: Annotated[Any, Unsupported("no LoRA adapters are served", (None, ""))] = None


class TgiGenerateRequest(RequestTable):
    """Request of ``/generate`` and ``/generate_stream``."""

    inputs: Annotated[str, Field(min_length=1, description="Prompt, without a chat template.")]
    parameters: TgiParameters | None = None
    stream: Annotated[
        Any, Ignored((None, False)), Field(description="The path says whether it is a stream.")
    ] = None


class TgiCompatRequest(RequestTable):
    """Request of ``/``."""

    inputs: Annotated[str, Field(min_length=1, description="Prompt, without a chat template.")]
    parameters: TgiParameters | None = None
    stream: Annotated[bool | None, Field(description="Stream server-sent events.")] = None
