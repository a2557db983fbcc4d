"""Validation of submissions against the model, and creation of their sequences.

The engine validates everything itself, because bad input from the gateway could crash it.
"""

from __future__ import annotations

import math
import time
from typing import get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.messages import POOLINGS, SamplingParams, Submit
from gatewayd_engine.process.plugin_faults import RequestRejected
from gatewayd_engine.sampling.random import fork_seed
from gatewayd_engine.state.sequence import Sequence
from gatewayd_hooks.guiding import GuideForm
from gatewayd_hooks.scheduling import Priority

_MAX_LOGPROBS = 256
"""Alternatives per token; more would not fit a frame for a long prompt."""


def check_submission(message: Submit, vocab_size: int, max_model_len: int) -> NDArray[np.int32]:
    """Validate everything in a submission that a step relies on.

    Returns:
        The prompt's token ids, shape ``[prompt_len]``.

    Raises:
        RequestRejected: naming the parameter, its value and its bounds.
    """
    if len(message.prompt) % 4:
        raise RequestRejected("the prompt is not an int32 array")
    prompt = np.frombuffer(message.prompt, np.int32)
    _within("priority", message.priority, 0, len(Priority) - 1)
    _within("queued_seconds", message.queued_seconds, 0, 1e9)
    _within("retention priority", message.retention[0], 0, 100)
    _within("retention seconds", message.retention[1], 0, 1e9)
    _within("weight", message.weight, 1e-6, 1e6)
    if message.deadline is not None:
        _within("deadline", message.deadline, 0, 1e9)
    if not message.sequences or len(set(message.sequences)) < len(message.sequences):
        raise RequestRejected("a request needs at least one sequence id, and no id twice")
    if not len(prompt):
        raise RequestRejected("the prompt is empty; it needs at least one token")
    if int(prompt.min()) < 0 or int(prompt.max()) >= vocab_size:
        raise RequestRejected(f"prompt token ids must be from 0 to {vocab_size - 1}")
    params = message.params
    _within("max_tokens", params.max_tokens, 1, max_model_len)
    if len(prompt) + params.max_tokens > max_model_len:
        raise RequestRejected(
            f"{len(prompt)} prompt tokens and max_tokens {params.max_tokens} are over the "
            f"context of {max_model_len}"
        )
    _check_pooling(message)
    if params.guide is not None and params.guide[0] not in get_args(GuideForm):
        raise RequestRejected(f"{params.guide[0]!r} is not a kind of guide")
    if params.guide_behind is not None and not params.guide_behind[1]:
        raise RequestRejected("guide_behind needs a mark that ends the reasoning")
    _check_params(params, vocab_size)
    return prompt


def make_sequences(
    message: Submit, prompt: NDArray[np.int32], seed: int, *, compacts: bool = False
) -> list[Sequence]:
    """Create a sequence for each output of a validated request.

    Args:
        message: the request.
        prompt: its token ids.
        seed: seed of the request, from which a seed per sequence is derived.
        compacts: whether prompts may be compacted; a prompt shared by several sequences never is.
    """
    arrived = time.monotonic() - message.queued_seconds
    params = msgspec.structs.replace(message.params, tenant=message.tenant)
    if params.guide is not None:
        # Nothing can follow a completed grammar, so EOS must end the sequence.
        params = msgspec.structs.replace(params, ignore_eos=False)
    sequences = [
        Sequence(
            sequence_id,
            prompt,
            params,
            salt=message.salt,
            tenant=message.tenant,
            priority=message.priority,
            # Any integer is a valid seed, negative ones included.
            seed=fork_seed(seed % 2**64, choice),
            limit=len(prompt) + message.params.max_tokens,
            submitted=arrived,
            retention=message.retention,
            weight=message.weight,
            deadline=math.inf if message.deadline is None else arrived + message.deadline,
            names=(message.request_id, message.x_request_id),
        )
        for choice, sequence_id in enumerate(message.sequences)
    ]
    sequences[0].compacts = compacts and len(sequences) == 1
    return sequences


def _check_pooling(message: Submit) -> None:
    pooling = message.params.pooling
    if pooling is None:
        return
    if pooling not in POOLINGS:
        raise RequestRejected(f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}")
    if len(message.sequences) > 1 or message.params.prompt_logprobs is not None:
        raise RequestRejected("pooling needs one sequence, and prompt_logprobs to be None")


def _check_params(params: SamplingParams, vocab_size: int) -> None:
    _within("min_tokens", params.min_tokens, 0, params.max_tokens)
    _within("temperature", params.temperature, 0, 1e6)
    _within("top_k", params.top_k, 0, 2**31)
    # The bound is the smallest positive float64: only 0 itself is excluded.
    _within("top_p", params.top_p, 5e-324, 1)
    _within("min_p", params.min_p, 0, 1)
    _within("repetition_penalty", params.repetition_penalty, 1e-6, 1e6)
    _within("frequency_penalty", params.frequency_penalty, -1e6, 1e6)
    _within("presence_penalty", params.presence_penalty, -1e6, 1e6)
    for token in params.stop_token_ids:
        _within("stop_token_ids", token, 0, vocab_size - 1)
    for token, bias in params.logit_bias:
        _within("logit_bias token ids", token, 0, vocab_size - 1)
        _within("logit_bias", bias, -1e6, 1e6)
    most = min(vocab_size, _MAX_LOGPROBS)
    _within("logprobs", params.logprobs or 0, 0, most)
    _within("prompt_logprobs", params.prompt_logprobs or 0, 0, most)


def _within(name: str, value: float, low: float, high: float) -> None:
    # A NaN fails this comparison.
    if not (low <= value <= high and math.isfinite(value)):
        raise RequestRejected(f"{name} is {value}; it must be from {low:g} to {high:g}")
