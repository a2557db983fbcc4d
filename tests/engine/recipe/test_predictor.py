"""The network that foresees attention: what it is trained on, and that it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from gatewayd_engine import embedded
from gatewayd_engine.drafting import Target
from gatewayd_engine.heads import read_heads
from gatewayd_engine.quality.texts import bundled
from gatewayd_engine.recipe import predictor, predictor_stage
from gatewayd_engine.recipe.predictor import Decoding, Trace, train_network
from gatewayd_engine.recipe.symbols import SourceFile
from gatewayd_engine.recipe.traces import Seen, open_decoder, trace

NANO = embedded.folder("nano")
torch.set_num_threads(1)


def moving(seed: int, count: int = 3, steps: int = 48, blocks: int = 44) -> Trace:
    """Attention to one block, which moves on by one with each token, and a little to others."""
    generator = torch.Generator().manual_seed(seed)
    mass = torch.rand(count, steps, blocks, generator=generator) * 0.004
    for i in range(count):
        for step in range(steps):
            mass[i, step, (3 * i + step) % 20] += 1
    return Trace(mass / mass.sum(-1, keepdim=True), begin=122, block=4)


def held(network: predictor.Network, trace: Trace) -> float:
    """How much attention is in what is selected, of the tokens that see a part."""
    decoding, found = Decoding(trace, 0.125), []
    with torch.no_grad():
        for step in range(trace.mass.shape[1]):
            inside = decoding.advance(network(decoding.image()))
            if step >= predictor.WARM and (trace.begin + step + 1) % predictor.EVERY:
                found.append(inside)
    return float(torch.stack(found).mean())


def test_it_learns_what_moves() -> None:
    torch.manual_seed(0)
    before = held(predictor.Network(), moving(9))
    trained = train_network([moving(1), moving(2)], 3, 3e-3, 1, lambda done, steps, loss: None)
    assert trained.steps == 3 * 2 * 48
    assert trained.last_loss < trained.first_loss - 0.5
    assert held(trained.network, moving(9)) > before + 0.2


def test_what_is_trained_is_the_same_each_time() -> None:
    ones = [train_network([moving(1)], 1, 3e-3, 4, lambda *told: None).network for _ in range(2)]
    for one, other in zip(*(network.state_dict().values() for network in ones), strict=True):
        assert torch.equal(one, other)


def test_what_is_not_selected_is_not_seen() -> None:
    decoding = Decoding(moving(1), 0.125)
    for _ in range(predictor.WARM):
        decoding.advance(torch.zeros(3, 44))
    before = decoding.image()
    scores = torch.zeros(3, 44)
    scores[:, 10:12] = 1
    truth = decoding.truth.clone()
    # Of 181 tokens an eighth is 23, five blocks: these two, the first, and the newest two.
    inside = decoding.advance(scores)
    chosen = [0, 10, 11, 37, 38]
    assert torch.allclose(inside, truth[:, chosen].sum(-1))
    row, kept = decoding.image()[:, predictor.ROWS - 1], before[:, predictor.ROWS - 1]
    others = [block for block in range(44) if block not in chosen]
    assert torch.equal(row[:, others], kept[:, others])
    assert not torch.equal(row[:, chosen], kept[:, chosen])


def test_texts_are_none_of_those_that_quality_is_measured_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    measured = [text.text for text in bundled() if text.kind == "code"][:2]
    files = []
    for text in measured:
        name, _, body = text.removeprefix("<|endoftext|># ").partition("\n")
        files.append(SourceFile(Path(name), body * 9))
    own = "".join(f'def own{i}(a):\n    """Do {i} times."""\n' for i in range(40))
    files.append(SourceFile(Path("own.py"), f'"""Own."""\n{own}'))
    monkeypatch.setattr(predictor_stage, "source_files", lambda root: files)
    monkeypatch.setattr(predictor_stage, "LENGTHS", (64,))
    found = predictor_stage.compose(tokenizer, [64, 64], 1)
    assert [len(ids) for ids in found] == [64, 64]
    assert "own.py" in tokenizer.decode(found[1], skip_special_tokens=False)


def test_a_trace_is_what_the_model_attends_to_and_the_network_is_for_that_model(
    tmp_path: Path,
) -> None:
    decoder = open_decoder(NANO)
    shape = decoder.spec.attention
    seen: list[Seen] = []
    ids = list(range(100, 180))
    trace(decoder, ids, 5, seen.append)
    assert [one.layer for one in seen] == list(range(shape.num_layers))
    for one in seen:
        assert one.weights.shape == (shape.num_heads, 5, 80)
        assert torch.allclose(one.weights.sum(-1), torch.ones(shape.num_heads, 5), atol=1e-5)
        assert not one.weights[:, 0, 76:].any()
        scores = torch.einsum("qhd,khd->hqk", one.queries[-1:], one.keys.repeat_interleave(3, 1))
        expected = torch.softmax(scores * shape.scale, -1)
        assert torch.allclose(one.weights[:, -1:], expected, atol=1e-5)
    trained = predictor.TrainedNetwork(predictor.Network(), 1, 2.0, 1.0)
    predictor_stage.write_network(tmp_path / "it", trained, "nano", decoder)
    target = Target(384, torch.float32)
    heads = read_heads(str(tmp_path / "it"), "predictor", NANO, target, 4096, "cpu")
    assert heads.facts["block"] == predictor_stage.BLOCK
    with pytest.raises(ValueError, match="this model has 128"):
        read_heads("", "predictor", NANO, Target(128, torch.float32), 4096, "cpu")
    with pytest.raises(ValueError, match=r"recipe predictor.*\[kv_compression\.predictor\]"):
        read_heads(str(tmp_path), "predictor", NANO, target, 4096, "cpu")
