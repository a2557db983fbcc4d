"""Attention predictor: training data and learning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quality.texts import bundled
from gatewayd_engine.offline.train import predictor, predictor_stage
from gatewayd_engine.offline.train.attention_traces import AttentionTrace, open_decoder, trace
from gatewayd_engine.offline.train.predictor import Decoding, Trace, train_network
from gatewayd_engine.offline.train.stdlib_symbols import SourceFile
from gatewayd_engine.speculation.draft_heads import read_heads
from gatewayd_engine.speculation.draft_models import DraftTarget

NANO = embedded.folder("nano")
torch.set_num_threads(1)


BEGIN = 112


def moving(seed: int, count: int = 6, tokens: int = 96) -> Trace:
    """Attention to one place, which moves on by eight with each round, and a little to others."""
    generator = torch.Generator().manual_seed(seed)
    mass = torch.rand(count, tokens, BEGIN + tokens, generator=generator) * 0.004
    for i in range(count):
        for token in range(tokens):
            mass[i, token, 4 * i + 8 * (token // predictor.EVERY)] += 1
            mass[i, token, BEGIN + token + 1 :] = 0
    return Trace(mass / mass.sum(-1, keepdim=True), BEGIN)


def held(network: predictor.PredictorNetwork, trace: Trace) -> float:
    """How much attention is in what is selected, of the tokens that see a part."""
    decoding = Decoding(trace, 0.125)
    with torch.no_grad():
        found = [decoding.advance(network(seen.image)) for seen in decoding.rounds()]
    return float(torch.cat(found, 1).mean())


def test_it_learns_what_moves() -> None:
    torch.manual_seed(0)
    before = held(predictor.PredictorNetwork(), moving(9))
    traces = [moving(seed) for seed in range(8)]
    trained = train_network(traces, 5, 1e-2, 1, lambda done, steps, loss: None)
    # Of 96 tokens 32 attend to all at first; the others are four rounds.
    assert trained.steps == 5 * 8 * 4
    assert trained.last_loss < trained.first_loss - 0.5
    assert held(trained.network, moving(9)) > before + 0.2


def test_what_is_trained_is_the_same_each_time() -> None:
    ones = [train_network([moving(1)], 1, 3e-3, 4, lambda *told: None).network for _ in range(2)]
    for one, other in zip(*(network.state_dict().values() for network in ones), strict=True):
        assert torch.equal(one, other)


def served_once(trace: Trace) -> tuple[torch.Tensor, torch.Tensor]:
    """What the first places hold of the first round, and what is known in the next one."""
    decoding = Decoding(trace, 0.125)
    rounds = decoding.rounds()
    first = next(rounds)
    inside = decoding.advance(-torch.arange(first.image.shape[-1]).expand(6, -1).float())
    return inside, next(rounds).image


def test_what_is_not_selected_is_not_seen() -> None:
    trace = moving(1)
    inside, known = served_once(trace)
    # The 33rd token is the first that attends to few: the first 31 places, and itself; the 47th is
    # the last.
    for token, num_new in ((32, 1), (46, 15)):
        mass, length = trace.mass[:, token], BEGIN + token + 1
        expected = mass[:, : 32 - num_new].sum(-1) + mass[:, length - num_new : length].sum(-1)
        assert torch.allclose(inside[:, token - 32], expected, atol=1e-6)
    assert inside.shape == (6, 15)
    for place, is_seen in ((60, False), (3, True), (31, False), (BEGIN + 32, True)):
        other = trace.mass.clone()
        other[:, 36:47, place] += 0.5
        again = served_once(Trace(other, BEGIN))[1]
        assert torch.equal(again, known) == (not is_seen)


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
    seen: list[AttentionTrace] = []
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
    trained = predictor.TrainedNetwork(predictor.PredictorNetwork(), 1, 2.0, 1.0)
    predictor_stage.write_network(tmp_path / "it", trained, "nano", decoder)
    target = DraftTarget(384, torch.float32)
    heads = read_heads(str(tmp_path / "it"), "predictor", NANO, target, 4096, "cpu")
    assert heads.facts["channels"] == predictor.CHANNELS
    with pytest.raises(ValueError, match="this model has 128"):
        read_heads("", "predictor", NANO, DraftTarget(128, torch.float32), 4096, "cpu")
    with pytest.raises(ValueError, match=r"offline.train predictor.*\[kv_compression\.predictor\]"):
        read_heads(str(tmp_path), "predictor", NANO, target, 4096, "cpu")
