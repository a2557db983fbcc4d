"""``prompt_logprobs`` of each prompt token but the first, in vLLM's format."""

from __future__ import annotations

from typing import Any

from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import encode_entries
from gatewayd.http.openai.wire import finite, token_text
from gatewayd.http.schema.generation import GenerationTable
from gatewayd.pipeline.generation import Generation
from gatewayd.text.tokenizer import Tokenizer
from gatewayd_engine.process.messages import TokenLogprobs


def check_prompt_logprobs(request: GenerationTable) -> None:
    """Check that prompt log-probabilities are not combined with streaming.

    Raises:
        InvalidRequest: both are requested.
    """
    if request.prompt_logprobs is not None and request.stream:
        raise InvalidRequest("prompt_logprobs needs stream to be false", param="prompt_logprobs")


def pop_prompt_logprobs(generation: Generation, prompt: int) -> list[TokenLogprobs]:
    """Return and clear the log-probabilities of a prompt.

    The choices of a prompt share them: any one of the choices may have received them.
    """
    n = generation.work.num_choices
    for one in generation.choices[prompt * n : (prompt + 1) * n]:
        if one.scored_prompt:
            taken, one.scored_prompt = one.scored_prompt, []
            return taken
    return []


def encode_prompt_logprobs(scored: list[TokenLogprobs], tokenizer: Tokenizer) -> bytes:
    """Encode the list: null for the first token, which has no log-probability, then objects.

    Args:
        scored: log-probabilities of the tokens from the second on; consumed.
        tokenizer: of the model.
    """
    scored.reverse()
    parts = [b"null"]
    while scored:
        # A few at a time, because allocating or freeing all at once would hold the GIL.
        some = [_entry(scored.pop(), tokenizer) for _ in range(min(len(scored), 256))]
        parts.append(encode_entries(some))
    return b"[%b]" % b",".join(parts)


def _entry(scored: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    """Build the object of a token and its alternatives, by token id."""
    ranked = zip(scored.top_tokens, scored.top_logprobs, strict=True)
    entry = {
        str(token): _one(token, logprob, rank, tokenizer)
        for rank, (token, logprob) in enumerate(ranked, start=1)
    }
    own = _one(scored.token, scored.logprob, scored.rank, tokenizer)
    # The prompt's token comes first, whether it is an alternative or not.
    return {str(scored.token): own, **entry}


def _one(token: int, logprob: float, rank: int, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "logprob": finite(logprob),
        "rank": rank,
        "decoded_token": token_text(tokenizer.piece(token)),
    }
