"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gatewayd.catalogue.target import UpstreamTarget
from gatewayd.engines.api import EngineRequest
from gatewayd.errors import InvalidRequest
from gatewayd.http.openai.chat_prompt import most_counted
from gatewayd.http.openai.completion_wire import CompletionWire
from gatewayd.http.openai.generate import GenerationRoute, PreparedRequest, identity_of
from gatewayd.http.openai.prompt_logprobs import check_prompt_logprobs
from gatewayd.http.openai.relayed import prepare_relayed_completion
from gatewayd.http.openai.sampling import (
    check_ids,
    choice_options,
    class_param_of,
    fit_max_tokens,
    priority_of,
    retention_of,
    salt_of,
    sampling_params,
)
from gatewayd.http.openai.structured_output import output_constraint
from gatewayd.http.schema.completion import DEFAULT_MAX_TOKENS, CompletionRequest
from gatewayd.http.services import Services
from gatewayd.text.text_model import TextModel
from gatewayd.text.tokenizer import PER_TEXT, Tokenizer
from gatewayd_engine.process.messages import ModelInfo


class _Prompt(NamedTuple):
    ids: list[int]
    text: str | None
    """The prompt's text, or None if the client sent token ids."""


class CompletionRoute(GenerationRoute[CompletionRequest]):
    """Route of text completions."""

    label = "/v1/completions"
    table = CompletionRequest
    default_tokens: int | None = DEFAULT_MAX_TOKENS
    """Default of ``max_tokens``; None for the rest of the context."""

    async def prepare(
        self, services: Services, request: CompletionRequest, request_id: str
    ) -> PreparedRequest:
        """Encode the prompts, and validate rules across fields."""
        self._check_fields(request)
        if isinstance(services.target, UpstreamTarget):
            return prepare_relayed_completion(
                services.target, request, request_id, default_tokens=self.default_tokens
            )
        name = request.model or services.target.name
        model = await services.loaded_model()
        prompts = await _prompts(services.text, request, model)
        is_score = request.max_tokens == 0
        max_tokens = fit_max_tokens(
            # To score only the prompt, the engine generates one token, which is discarded.
            1 if is_score else request.max_tokens,
            self.default_tokens,
            max([len(prompt.ids) for prompt in prompts]),
            model.max_model_len,
            prompt_param="prompt",
        )
        constraint = output_constraint(request)
        params = sampling_params(
            request,
            model,
            max_tokens=max_tokens,
            logprobs=request.logprobs,
            prompt_logprobs=request.logprobs if request.echo else request.prompt_logprobs,
            guide=await services.check_guide(constraint),
            may_be_shorter=request.max_tokens is None and self.default_tokens is None,
        )
        tokenizer = services.text.tokenizer
        echoed = None
        if request.echo:
            size = sum([len(one.ids) for one in prompts if one.text is None])
            echoed = await tokenizer.run_by_size(
                size, lambda: [_shown(prompt, tokenizer) for prompt in prompts]
            )
        identity = identity_of(
            request, "cmpl-", request_id, name, with_logprobs=request.logprobs is not None
        )
        return PreparedRequest(
            requests=[
                EngineRequest(
                    # Each prompt is a request of its own at the engines.
                    request_id=request_id if len(prompts) == 1 else f"{request_id}-{at}",
                    prompt=prompt.ids,
                    params=params,
                    salt=salt_of(request),
                    cache_key=request.prompt_cache_key or "",
                    priority=priority_of(request),
                    class_param=class_param_of(request),
                    retention=retention_of(request),
                    retry_started=not request.stream,
                    guide_param=constraint and constraint.param,
                )
                for at, prompt in enumerate(prompts)
            ],
            num_choices=request.n or 1,
            options=choice_options(request, tokenizer, continues=True, discard=is_score),
            wire=CompletionWire(identity, tokenizer, echoed),
            identity=identity,
        )

    def _check_fields(self, request: CompletionRequest) -> None:
        n = request.n or 1
        if request.best_of is not None and request.best_of != n:
            wrong = "at least" if request.best_of < n else "at most"
            raise InvalidRequest(
                f"best_of is {request.best_of} and n is {n}; best_of must be {wrong} n: no "
                "candidates are generated to be discarded, so omit best_of",
                param="best_of",
            )
        if request.echo and request.prompt_logprobs is not None:
            raise InvalidRequest(
                "prompt_logprobs needs echo to be false; with echo, use logprobs for the prompt",
                param="prompt_logprobs",
            )
        check_prompt_logprobs(request)
        if request.max_tokens == 0 and not (request.echo or request.prompt_logprobs is not None):
            raise InvalidRequest(
                "max_tokens is 0; the minimum is 1 without echo or prompt_logprobs",
                param="max_tokens",
            )
        if request.stream_options is not None and not request.stream:
            raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
        total = n * _count(request.prompt)
        if total > self._services.limits.num_choices:
            raise InvalidRequest(
                f"{total} choices are requested; the maximum is "
                f"{self._services.limits.num_choices} over all prompts",
                param="n",
            )


async def _prompts(text: TextModel, request: CompletionRequest, model: ModelInfo) -> list[_Prompt]:
    given, limit = _each(request.prompt), _truncation(request, model)
    # Before any is encoded: text that is certainly too long costs nothing.
    for one in given:
        if not isinstance(one, str):
            check_ids(one, model.vocab_size, "prompt")
        elif limit is None or len(one) > most_counted(model.max_model_len):
            text.check_length(one, model.max_model_len, "prompt")

    def encode() -> list[_Prompt]:
        return [
            _Prompt(text.tokenizer.encode(one, add_special=request.add_special_tokens), one)
            if isinstance(one, str)
            else _Prompt(one, None)
            for one in given
        ]

    def truncated(prompt: _Prompt) -> _Prompt:
        if limit is None or len(prompt.ids) <= limit:
            return prompt
        return _Prompt(prompt.ids[-limit:], None)

    size = sum([len(one) + PER_TEXT for one in given if isinstance(one, str)])
    prompts = await text.tokenizer.run_by_size(size, encode)
    if not all([prompt.ids for prompt in prompts]):
        raise InvalidRequest("the prompt is empty; it needs at least one token", param="prompt")
    return [truncated(prompt) for prompt in prompts]


def _count(prompt: str | list[str] | list[int] | list[list[int]]) -> int:
    return 1 if isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)


def _each(prompt: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | list[int]]:
    """Return the prompts, given as a string, strings, token ids or lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [prompt]
    return prompt


def _truncation(request: CompletionRequest, model: ModelInfo) -> int | None:
    """Return the maximum number of tokens to which prompts are truncated; None for no truncation.

    Raises:
        InvalidRequest: it leaves no token for the answer, or for the prompt.
    """
    asked, most = request.truncate_prompt_tokens, model.max_model_len - 1
    if asked == 0 or (asked or 0) > most:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {asked}; it must be from 1 to {most}, or -1 for {most}",
            param="truncate_prompt_tokens",
        )
    return most if asked == -1 else asked


def _shown(prompt: _Prompt, tokenizer: Tokenizer) -> str:
    """Return the prompt's text for the echo."""
    return tokenizer.decode(prompt.ids, skip_special=True) if prompt.text is None else prompt.text
