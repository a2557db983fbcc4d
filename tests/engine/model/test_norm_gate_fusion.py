"""Norm and gate fusion: changes nothing but rounding, in every family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.loading.loader import load
from gatewayd_engine.model.parts import FusedParts
from gatewayd_engine.model.spec import read_spec
from tests.engine.runner.gpu.launches import CountedKernels, Launches
from tests.engine.runner.gpu.test_piecewise_graphs import Mixing

LAYERS = 3


# Per layer: the norms and gates that remain, those that matrices take over, and what is added apart
# because no matrix can, or the norm behind it is another.
@pytest.mark.parametrize(
    ("architecture", "left", "fused", "added"),
    [
        ("llama", (0, 0), 2, 0),
        ("llama_biases", (0, 0), 2, 2),
        ("qwen3", (0, 0), 2, 0),
        # Norms behind attention and feed-forward, too.
        ("gemma2", (2, 0), 2, 2),
        # Experts are many, and a router is among them.
        ("mixtral", (1, None), 1, None),
    ],
)
def test_a_decoder_computes_the_same(
    architecture: str,
    left: tuple[int, int | None],
    fused: int,
    added: int | None,
    checkpoint: Callable[[str], Path],
) -> None:
    folder = checkpoint(architecture)
    spec = read_spec(folder)
    kernels: Any = CountedKernels(TorchKernels())
    parts = FusedParts(kernels)

    def run(lines: int) -> tuple[torch.Tensor, Counter[str]]:
        kernels.launches = launches = Launches()
        ids = torch.arange(lines) + 3
        with launches:
            made = decoder.raw_logits(decoder.hidden(ids, ids, Mixing(decoder)))
        return made, launches.counts

    with torch.inference_mode():
        decoder = load(folder, spec, torch.float32, "cpu", lambda part: None, parts)
        assert parts.fusion.is_possible
        expected, apart = run(3)
        assert apart["norm_mm"] == 0
        parts.fusion.lines.add(3)
        made, counts = run(3)
        four = run(4)[1]
    torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-3)
    assert counts["norm_mm"] == fused * spec.num_layers
    # The last norm has no matrix of a layer behind it.
    assert counts["add_rms_norm"] == left[0] * spec.num_layers + 1
    if left[1] is not None:
        assert counts["gated"] == left[1] * spec.num_layers
    if added is not None:
        # The first layer's norm adds nothing; the last norm adds by itself.
        assert counts["add_"] == max(0, added * spec.num_layers - 1)
    assert four["norm_mm"] == 0
