"""Logits processors on a device: no host sync.

The device is ``meta``: its tensors have no numbers, so that reading any raises. What is brought to
it has to be copied without waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from gatewayd_hooks.logits import LogitsProcessor, TokenReader
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.logits import Sampling
from gatewayd_logits_bias.strategy import Bias
from gatewayd_logits_min_tokens.strategy import MinTokens
from gatewayd_logits_penalties.strategy import Penalties
from gatewayd_logits_watermark.config import WatermarkConfig
from gatewayd_logits_watermark.strategy import Watermark

VOCAB = 40


class Uploads(TorchFunctionMode):
    """Refuses copies to the device that wait for what was launched before."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        named = kwargs or {}
        made = func(*args, **named)
        is_there = isinstance(made, torch.Tensor) and made.is_meta and made.numel()
        if is_there and func in (torch.tensor, torch.as_tensor):
            raise AssertionError(f"{func} copies to the device and waits")
        if is_there and func in (torch.Tensor.to, torch.Tensor.copy_):
            source = args[0] if func is torch.Tensor.to else args[1]
            assert source.is_meta or named.get("non_blocking"), f"{func} waits"
        if func is torch.Tensor.__setitem__ and args[0].is_meta:
            where = args[1] if isinstance(args[1], tuple) else (args[1],)
            is_filled = all(isinstance(one, slice) or one is ... for one in where)
            assert is_filled or isinstance(args[2], torch.Tensor), f"{args[2]} is copied and waits"
        return made


def processors() -> Iterator[LogitsProcessor]:
    yield Bias()
    yield MinTokens()
    yield Penalties()
    yield Watermark(WatermarkConfig(secret="0123456789abcdef", context=2, delta=2, max_delta=24))


@pytest.mark.parametrize("processor", list(processors()), ids=lambda one: type(one).__name__)
def test_a_changing_batch_waits_for_nothing(processor: LogitsProcessor) -> None:
    device = "meta"
    processor.open(engine_resources(vocab_size=VOCAB, eos_token_ids=(2, 3), device=device))
    params = Sampling(
        logit_bias=[(7, 1.0)],
        min_tokens=4,
        stop_token_ids=[9],
        frequency_penalty=0.5,
        repetition_penalty=1.5,
    )
    prompt, output = np.array([1, 4], np.int32), np.zeros(0, np.int32)
    with Uploads():
        for row in range(3):
            assert processor.admit(row, params, prompt, output)
        for step in range(80):
            rows = torch.arange(2 if step == 3 else 3)
            logits = torch.zeros(len(rows), VOCAB, device=device)
            processor.apply(logits, torch.arange(len(rows)), rows)
            # The same tokens all the time: a weak mark, which is made stronger.
            ids = torch.full((len(rows),), step % 3)
            processor.append(
                rows,
                ids if isinstance(processor, TokenReader) else ids.to(device, non_blocking=True),
            )
        processor.remove(1)
        assert processor.admit(1, params, prompt, output)
