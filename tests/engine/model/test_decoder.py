"""Decoder: logits equal transformers' with the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gatewayd_engine.model import embedded
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.loader import dummy, load
from gatewayd_engine.model.spec import read_spec

Ours = Callable[[Decoder, torch.Tensor], torch.Tensor]
Theirs = Callable[..., torch.Tensor]

PROMPT_LEN = 100  # beyond every sliding window of the variants


def loaded(folder: Path, max_model_len: int | None = None) -> Decoder:
    spec = read_spec(folder, max_model_len)
    return load(folder, spec, torch.float32, "cpu", lambda fraction: None)


def prompt(vocab_size: int, length: int = PROMPT_LEN) -> torch.Tensor:
    return torch.randint(vocab_size, (length,), generator=torch.Generator().manual_seed(7))


def test_logits_of_every_variant_are_those_of_transformers(
    variant: str, checkpoint: Callable[[str], Path], our_logits: Ours, their_logits: Theirs
) -> None:
    folder = checkpoint(variant)
    ids = prompt(320)
    torch.testing.assert_close(
        our_logits(loaded(folder), ids), their_logits(folder, ids), atol=5e-5, rtol=0
    )


@pytest.mark.parametrize("name", embedded.names())
def test_logits_of_the_embedded_models_are_those_of_transformers(
    name: str, our_logits: Ours, their_logits: Theirs
) -> None:
    folder = embedded.folder(name)
    ids = prompt(4096)
    torch.testing.assert_close(
        our_logits(loaded(folder), ids), their_logits(folder, ids), atol=2e-4, rtol=0
    )


def test_longrope_beyond_the_original_context_is_that_of_transformers(
    checkpoint: Callable[[str], Path], our_logits: Ours, their_logits: Theirs
) -> None:
    folder = checkpoint("phi3_longrope")
    ids = prompt(320, 300)
    decoder = loaded(folder, max_model_len=1024)
    torch.testing.assert_close(
        our_logits(decoder, ids), their_logits(folder, ids), atol=5e-5, rtol=0
    )


def test_old_names_of_rope_settings_mean_the_same(
    make_checkpoint: Callable[..., Path], tmp_path: Path, our_logits: Ours
) -> None:
    folder = make_checkpoint(tmp_path, "llama3")
    ids = prompt(320)
    new = our_logits(loaded(folder), ids)
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(our_logits(loaded(folder), ids), new)


def test_a_token_sees_only_what_comes_before_it(
    architecture: str, checkpoint: Callable[[str], Path], our_logits: Ours
) -> None:
    decoder = loaded(checkpoint(architecture))
    ids = prompt(320)
    whole, half = our_logits(decoder, ids), our_logits(decoder, ids[:50])
    torch.testing.assert_close(whole[:50], half, atol=1e-4, rtol=0)


def test_a_token_that_becomes_nan_spoils_no_other(
    architecture: str, checkpoint: Callable[[str], Path]
) -> None:
    decoder = loaded(checkpoint(architecture))

    def logits(spoiled: bool) -> torch.Tensor:
        def attend(layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
            answer = query.flatten(1).clone()
            if spoiled:
                answer[3] = float("nan")
            return answer

        with torch.inference_mode():
            return decoder.logits(decoder.hidden(prompt(320, 8), torch.arange(8), attend))

    healthy, spoiled = logits(False), logits(True)
    assert spoiled[3].isnan().all()
    others = [0, 1, 2, 4, 5, 6, 7]
    torch.testing.assert_close(spoiled[others], healthy[others], atol=1e-4, rtol=0)


def test_dummy_weights_answer_for_every_architecture(
    architecture: str, checkpoint: Callable[[str], Path], our_logits: Ours
) -> None:
    spec = read_spec(checkpoint(architecture))
    ids = prompt(320, 10)
    decoder = dummy(spec, torch.float32, "cpu", seed=3)
    assert decoder.num_parameters == loaded(checkpoint(architecture)).num_parameters
    logits = our_logits(decoder, ids)
    assert logits.shape == (10, 320)
    assert logits.isfinite().all()
    assert logits.std() > 0.1
    assert torch.equal(logits, our_logits(dummy(spec, torch.float32, "cpu", seed=3), ids))
    assert not torch.equal(logits, our_logits(dummy(spec, torch.float32, "cpu", seed=4), ids))


def test_bfloat16_is_no_further_from_float32_than_that_of_transformers(
    architecture: str, checkpoint: Callable[[str], Path], our_logits: Ours, their_logits: Theirs
) -> None:
    folder = checkpoint(architecture)
    spec = read_spec(folder)
    decoder = load(folder, spec, torch.bfloat16, "cpu", lambda fraction: None)
    ids = prompt(320, 24)
    exact = our_logits(loaded(folder), ids)
    ours, theirs = our_logits(decoder, ids), their_logits(folder, ids, torch.bfloat16).float()
    assert ours.dtype == torch.float32
    # Not the mean: a token that visits another of two experts with nearly equal scores is far off.
    assert (ours - exact).abs().median() < 1.3 * (theirs - exact).abs().median()
