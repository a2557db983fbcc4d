"""KV compression plugins: contract and selected positions."""

from __future__ import annotations

import mmap
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from gatewayd_engine.model import embedded
from gatewayd_engine.offline.train import predictor as recipe
from gatewayd_engine.speculation.draft_heads import read_heads
from gatewayd_engine.speculation.draft_models import DraftTarget
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
    read_heads, model=NANO, target=DraftTarget(384, torch.float32), vocab_size=4096, device="cpu"
)


class TestHeavy(KvCompressionConformance):
    def make(self) -> KvCompressionStrategy:
        return Heavy(HeavyConfig())


class TestPredictor(KvCompressionConformance):
    def make(self) -> KvCompressionStrategy:
        return Predictor(PredictorConfig())

    def resources(self) -> EngineResources:
        return replace(super().resources(), read_heads=read)


def resident() -> int:
    """Bytes of memory that this process has been given."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_heavy_takes_memory_as_far_as_contexts_reach() -> None:
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


def test_the_predictor_takes_memory_as_far_as_contexts_reach_and_clears_it() -> None:
    resources = replace(TestPredictor().resources(), max_running=64, max_model_len=1 << 20)
    before = resident()
    strategy = Predictor(PredictorConfig(dense_layers=0, warm_steps=2))
    strategy.open(resources)  # room for 5 GiB
    for row in range(64):
        strategy.admit(row)
    for length in range(600, 620):
        attended(strategy, length)
    memory = strategy._memory
    assert memory is not None
    assert memory._kept[0].any()
    assert memory._given[0].any()
    strategy.admit(0)
    assert not memory._kept[0, ..., :700].any()
    assert resident() - before < 512 << 20  # of 5 GiB; pages of the system may be large
    strategy.close()


@pytest.mark.parametrize("name", ["kv_shape", "read_heads"])
def test_the_predictor_says_what_the_engine_does_not_provide(name: str) -> None:
    resources = replace(TestPredictor().resources(), **{name: None})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"does not provide {name}$"):
        TestPredictor().make().open(resources)


def test_layers_that_are_all_left_whole_attend_to_all() -> None:
    strategy = Predictor(PredictorConfig(dense_layers=9, warm_steps=1))
    strategy.open(TestPredictor().resources())
    assert [attended(strategy, length)[0] for length in (601, 602, 603)] == [set()] * 3


def test_the_network_is_the_one_that_was_trained() -> None:
    heads = read("", "predictor")
    trained = recipe.PredictorNetwork()
    trained.load_state_dict({name: tensor.float() for name, tensor in heads.tensors.items()})
    last, means = torch.rand(3, 40), torch.rand(3, len(recipe.RATES), 40) / 20
    seen = recipe.image(last, means)
    assert torch.equal(network.image(torch.cat((last[:, None], means), 1)), seen)
    assert network.RATES == recipe.RATES
    with torch.no_grad():
        expected = trained(seen)
    assert torch.allclose(network.Network(heads)(seen), expected, atol=1e-5)


def test_it_selects_what_the_trained_one_selects() -> None:
    """A sequence is served by the strategy as the recipe serves it in training."""
    generator = torch.Generator().manual_seed(3)
    begin, steps = 300, 100
    weights = torch.zeros(2, steps, begin + steps)
    for i in range(steps):
        # What is attended to wanders, so that it can be foreseen in part.
        scores = 4 * torch.sin(torch.arange(begin + i + 1) * (1 + i / 50) / 9)
        scores = scores + torch.randn(2, begin + i + 1, generator=generator)
        weights[:, i, : begin + i + 1] = torch.softmax(scores, -1)
    decoding = recipe.Decoding(recipe.Trace(weights, begin), 0.125)
    trained = recipe.PredictorNetwork()
    trained.load_state_dict(
        {name: tensor.float() for name, tensor in read("", "predictor").tensors.items()}
    )
    with torch.no_grad():
        expected = torch.cat(
            [decoding.advance(trained(seen.image)) for seen in decoding.rounds()], 1
        )
    strategy = Predictor(PredictorConfig(dense_layers=0))
    strategy.open(TestPredictor().resources())
    found = [served(strategy, weights[:, i, : begin + i + 1], begin + i + 1) for i in range(steps)]
    few = torch.stack([one for one in found if one is not None], 1)
    assert few.shape[1] > 50
    assert torch.allclose(few, expected, atol=1e-4)


def predictor() -> Predictor:
    """One that attends to few from the third token on, but for each sixteenth."""
    strategy = Predictor(PredictorConfig(dense_layers=0, warm_steps=2, at_least=16))
    strategy.open(TestPredictor().resources())
    strategy.admit(0)
    return strategy


def attended(strategy: Predictor, length: int) -> list[set[int]]:
    """The places of row 0's key heads; empty ones where it attends to all."""
    rows, lengths = np.array([0]), np.array([length])
    budgets = strategy.budgets(rows, lengths)
    places = strategy.select(0, rows, lengths, budgets) if budgets[0] else None
    if places is not None:
        places = places.clone()  # an engine asks for all layers, and keeps what it is told
    generator = torch.Generator().manual_seed(length)
    count = length if places is None else places.shape[-1]
    weights = torch.softmax(4 * torch.randn(1, 6, count, generator=generator), -1)
    strategy.observe(0, rows, lengths, weights, places)
    return [set(), set()] if places is None else [set(head) for head in places[0].tolist()]


def test_places_hold_and_the_newest_takes_the_slot_of_the_worst() -> None:
    strategy = predictor()
    found = {length: attended(strategy, length) for length in range(606, 690)}
    for length, heads in found.items():
        for head, now in enumerate(heads):
            before = found.get(length - 1, heads)[head]
            if length % 16 == 0 or length < 608:
                assert not now
            elif before:
                assert now - before == {length - 1}
                assert len(before - now) == 1
            else:
                assert len(now) == -(-(length - 1) // 8)
                assert length - 1 in now
    assert found[609] != found[625]


def test_tokens_that_it_did_not_see_have_slots_too_and_after_too_many_it_looks_again() -> None:
    strategy = predictor()
    for length in range(606, 611):
        before = attended(strategy, length)
    for now, then in zip(attended(strategy, 614), before, strict=True):
        assert now - then == {610, 611, 612, 613}
    assert attended(strategy, 631) == [set(), set()]
    assert all(attended(strategy, 633))


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
