"""The KV compressions built in keep the contract, and select what they say."""

from __future__ import annotations

import mmap
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from gatewayd_engine import embedded
from gatewayd_engine.drafting import Target
from gatewayd_engine.heads import read_heads
from gatewayd_engine.recipe import predictor as recipe
from gatewayd_hooks.kv_compression import KvCompressionStrategy
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.testing.kv_compression import KvCompressionConformance
from gatewayd_kvc_heavy.config import HeavyConfig
from gatewayd_kvc_heavy.strategy import Heavy
from gatewayd_kvc_predictor import network
from gatewayd_kvc_predictor.config import PredictorConfig
from gatewayd_kvc_predictor.strategy import Predictor

NANO = embedded.folder("nano")
read = partial(
    read_heads, model=NANO, target=Target(384, torch.float32), vocab_size=4096, device="cpu"
)


class TestHeavy(KvCompressionConformance):
    def make(self) -> KvCompressionStrategy:
        return Heavy(HeavyConfig())


class TestPredictor(KvCompressionConformance):
    def make(self) -> KvCompressionStrategy:
        return Predictor(PredictorConfig())

    def resources(self) -> EngineResources:
        return replace(super().resources(), read_heads=read)


def test_heavy_takes_memory_as_far_as_contexts_reach() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    resources = replace(TestHeavy().resources(), max_running=64, max_model_len=1 << 20)
    heavy = Heavy(HeavyConfig(dense_layers=0))
    before = resident()
    heavy.open(resources)  # room for 1 GiB
    for row in range(64):
        heavy.admit(row)
    rows, lengths = np.array([3, 9]), np.array([400, 300])
    heavy.budgets(rows, lengths)
    heavy.observe(0, rows, lengths, torch.rand(2, 6, 400), None)
    places = torch.arange(50).expand(2, 2, 50)
    heavy.observe(1, rows, lengths, torch.rand(2, 6, 50), places)
    heavy.admit(3)
    assert not heavy._mass[:, 3, :, :400].any()
    assert heavy._mass[1, 9, :, :50].all()
    assert resident() - before < 64 << 20
    heavy.close()


def test_the_network_is_the_one_that_was_trained() -> None:
    heads = read("", "predictor")
    trained = recipe.Network()
    trained.load_state_dict({name: tensor.float() for name, tensor in heads.tensors.items()})
    history, total = torch.rand(3, recipe.ROWS, 40), torch.rand(3, 40) * 9
    newest = torch.tensor([39, 20, 7])
    seen = recipe.image(history, total, newest)
    assert torch.equal(network.image(history, total, newest), seen)
    with torch.no_grad():
        expected = trained(seen)
    assert torch.allclose(network.Network(heads)(seen), expected, atol=1e-5)


def test_it_selects_what_the_trained_one_selects() -> None:
    """A sequence is served by the strategy as the recipe serves it in training."""
    generator = torch.Generator().manual_seed(3)
    begin, steps, block = 300, 70, 2
    weights = torch.zeros(2, steps, begin + steps + 6)
    for i in range(steps):
        # What is attended to wanders, so that it can be foreseen in part.
        scores = 4 * torch.sin(torch.arange(begin + i + 1) * (1 + i / 50) / 9)
        scores = scores + torch.randn(2, begin + i + 1, generator=generator)
        weights[:, i, : begin + i + 1] = torch.softmax(scores, -1)
    mass = torch.unflatten(weights, -1, (-1, block)).sum(-1)
    decoding = recipe.Decoding(recipe.Trace(mass, begin, block), 0.125)
    trained = recipe.Network()
    trained.load_state_dict(
        {name: tensor.float() for name, tensor in read("", "predictor").tensors.items()}
    )
    strategy = Predictor(PredictorConfig(dense_layers=0))
    strategy.open(replace(TestPredictor().resources(), page_size=16))
    selected = 0
    for i in range(steps):
        with torch.no_grad():
            scores = trained(decoding.image())
        held = decoding.advance(scores)
        found = served(strategy, weights[:, i, : begin + i + 1], begin + i + 1)
        if found is not None:
            selected += 1
            assert torch.allclose(found, held, atol=0.02)
    assert selected > 30


def served(strategy: Predictor, weights: torch.Tensor, length: int) -> torch.Tensor | None:
    """One token of row 0 with these weights of its two key heads, of which it sees a part."""
    rows, lengths = torch.tensor([0]).numpy(), torch.tensor([length]).numpy()
    budgets = strategy.budgets(rows, lengths)
    by_head = weights.repeat_interleave(3, 0)[None]
    if not budgets[0]:
        strategy.observe(0, rows, lengths, by_head, None)
        return None
    places = strategy.select(0, rows, lengths, budgets)
    assert places is not None
    few = weights[None].gather(-1, places.clamp_min(0)).masked_fill(places < 0, 0)
    held = few.sum(-1)[0]
    few = (few / few.sum(-1, keepdim=True)).repeat_interleave(3, 1)
    strategy.observe(0, rows, lengths, few, places)
    return held
