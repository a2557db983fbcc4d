"""Fused steps: hidden states are those of the layers in torch, and a row's bits are its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.kernels.cpu.select import thread_team
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.cpu_parts import CompiledParts
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.fused import step as step_module
from gatewayd_engine.model.fused.build import fused_step
from gatewayd_engine.model.fused.data import PagedRows, StepOutputs
from gatewayd_engine.model.fused.step import FusedStep
from gatewayd_engine.model.loading.loader import load
from gatewayd_engine.model.spec import read_spec

PAGE = 16
Ours = Callable[[Decoder, torch.Tensor], torch.Tensor]
WIDEST = 16
"""Numbers of the widest vector that kernels use."""
UNFIT = {"mixtral", "mixtral_window", "qwen3_moe", "qwen3_moe_sparse_step", "phi3", "phi3_longrope"}
UNFIT |= {"qwen2_moe", "qwen2_moe_windows", "glm4_moe", "glm4_moe_biases"}
UNFIT |= {"gpt_oss", "gpt_oss_unbiased", "olmoe", "flex_olmo"}
UNFIT |= {"llama4", "llama4_biases", "llama4_chunks", "llama4_dense"}
"""With experts, attention within chunks, or a rotated part of a head that fills no vectors."""


def loaded(folder: Path) -> Decoder:
    team = thread_team(2)
    if team is None:
        pytest.skip("no compiled kernels for this processor")
    spec = read_spec(folder)
    return load(
        folder,
        spec,
        torch.float32,
        "cpu",
        lambda _: None,
        CompiledParts(team, rounds_activations=True),
    )


class Run:
    """A fused step over a pool of its own, whose sequences have scattered pages."""

    def __init__(self, decoder: Decoder, sequences: int, length: int) -> None:
        step = fused_step(decoder, PAGE)
        assert step is not None
        self.step: FusedStep = step
        self.embed = decoder.embed
        each = -(-length // PAGE)
        self.pool = KvPool(decoder.spec.attention, sequences * each, PAGE, torch.float32, "cpu")
        order = np.random.default_rng(0).permutation(sequences * each)
        self.table = order.reshape(sequences, each).astype(np.int64)

    def __call__(self, parts: list[tuple[int, int, torch.Tensor]]) -> list[torch.Tensor]:
        """Compute rows: sequence, first slot and token ids of each part."""
        ids = torch.cat([tokens for _, _, tokens in parts])
        slots = np.concatenate([np.arange(len(t)) + first for _, first, t in parts])
        lines = np.repeat(np.arange(len(parts)), [len(t) for _, _, t in parts])
        table = np.ascontiguousarray(self.table[[line for line, _, _ in parts]])
        rows = PagedRows(slots, slots, lines, table, self.pool.data)
        made = self.outputs(ids, rows, np.zeros(0, np.int64)).hidden
        return list(torch.split(made, [len(t) for _, _, t in parts]))

    def outputs(
        self, ids: torch.Tensor, rows: PagedRows, wanted: npt.NDArray[np.int64]
    ) -> StepOutputs:
        """Compute a step."""
        made = self.step.start(self.embed(ids), rows, wanted)
        self.step.join()
        return made


@pytest.fixture
def prompts() -> torch.Tensor:
    return torch.randint(320, (6, 90), generator=torch.Generator().manual_seed(3))


@torch.inference_mode()
def test_logits_are_those_of_transformers(
    variant: str,
    checkpoint: Callable[[str], Path],
    their_logits: Callable[..., torch.Tensor],
    prompts: torch.Tensor,
) -> None:
    folder = checkpoint(variant)
    decoder = loaded(folder)
    if fused_step(decoder, PAGE) is None:
        # Heads of 24 numbers are no multiple of a vector of 16.
        spec = decoder.spec
        assert variant in UNFIT or spec.head_dim % WIDEST or spec.latent is not None
        return
    (hidden,) = Run(decoder, 1, 90)([(0, 0, prompts[0])])
    made = decoder.logits(hidden)
    torch.testing.assert_close(made, their_logits(folder, prompts[0]), atol=5e-5, rtol=0)


@torch.inference_mode()
def test_logits_of_wanted_rows_are_the_heads(
    variant: str, checkpoint: Callable[[str], Path], prompts: torch.Tensor
) -> None:
    decoder = loaded(checkpoint(variant))
    if fused_step(decoder, PAGE) is None:
        return
    run = Run(decoder, 1, 90)
    slots = np.arange(90)
    rows = PagedRows(slots, slots, np.zeros(90, np.int64), run.table, run.pool.data)
    wanted = np.array([89, 3, 50, 3, 0, 7, 88])
    made = run.outputs(prompts[0], rows, wanted)
    expected = decoder.logits(made.hidden[torch.from_numpy(wanted)])
    torch.testing.assert_close(made.logits, expected, atol=1e-5, rtol=1e-5)
    best, tokens = made.logits.max(-1)
    assert torch.equal(made.best, best)
    assert torch.equal(made.tokens, tokens)


@torch.inference_mode()
def test_a_row_has_the_same_bits_in_any_batch_and_chunk(
    variant: str, checkpoint: Callable[[str], Path], prompts: torch.Tensor
) -> None:
    decoder = loaded(checkpoint(variant))
    if fused_step(decoder, PAGE) is None:
        return
    team = thread_team(2)
    assert team is not None
    team.use(1)
    alone = [Run(decoder, 1, 90)([(0, 0, prompt)])[0] for prompt in prompts]
    team.use(2)
    try:
        run = Run(decoder, 6, 90)
        draw = np.random.default_rng(1)
        done = [0] * 6
        made: list[list[torch.Tensor]] = [[] for _ in range(6)]
        while min(done) < 90:
            parts = []
            for line in draw.permutation(6)[: draw.integers(1, 7)].tolist():
                count = min(int(draw.choice([1, 1, 2, 7, 30])), 90 - done[line])
                if count:
                    parts.append((line, done[line], prompts[line, done[line] : done[line] + count]))
                    done[line] += count
            if parts:
                for (line, _, _), hidden in zip(parts, run(parts), strict=True):
                    made[line].append(hidden)
        for line in range(6):
            assert torch.equal(torch.cat(made[line]), alone[line]), line
    finally:
        team.use(team.size)


@torch.inference_mode()
def test_smaller_blocks_have_the_same_bits(
    checkpoint: Callable[[str], Path], prompts: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = loaded(checkpoint("llama"))
    parts = [(line, 0, prompts[line]) for line in range(3)]
    whole = Run(decoder, 3, 90)(parts)
    # As where contexts are so long that scores of few rows fit into scratch memory.
    monkeypatch.setattr(step_module, "_MOST_SCORES", 3000)
    run = Run(decoder, 3, 90)
    made = run(parts)
    assert 1 <= run.step.block_rows < 16
    for one, other in zip(made, whole, strict=True):
        assert torch.equal(one, other)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 17))
def test_blocks_are_rows_of_one_sequence(counts: list[int], most: int) -> None:
    lines = np.repeat(np.arange(len(counts)), counts)
    bounds = step_module.blocks_of(lines, most).tolist()
    assert (bounds[0], bounds[-1]) == (0, len(lines))
    blocks = [lines[a:b].tolist() for a, b in itertools.pairwise(bounds)]
    assert all(1 <= len(block) <= most and len(set(block)) == 1 for block in blocks)
    assert len(blocks) == sum(-(-count // most) for count in counts)


@torch.inference_mode()
def test_drafts_of_a_tree_attend_to_their_ancestors(
    checkpoint: Callable[[str], Path], prompts: torch.Tensor
) -> None:
    decoder = loaded(checkpoint("gemma2_uncapped"))
    prompt, length = prompts[0], 40
    # Two branches behind the last token: drafts 1 and 3, and draft 2.
    parents = [-1, -1, 0]
    tree = torch.tensor([5, 6, 7])
    run = Run(decoder, 1, 90)
    run([(0, 0, prompt[:length])])
    visible = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], np.uint8)
    slots = np.arange(length, length + 4)
    positions = np.array([length, length + 1, length + 1, length + 2])
    rows = PagedRows(
        *(positions, slots, np.zeros(4, np.int64), run.table, run.pool.data),
        *(visible, np.full(4, length)),
    )
    ids = torch.cat((prompt[length : length + 1], tree))
    made = run.outputs(ids, rows, np.zeros(0, np.int64)).hidden
    for draft in range(3):
        branch: list[int] = []
        at = draft
        while at >= 0:
            branch.insert(0, at)
            at = parents[at]
        tokens = torch.cat((prompt[: length + 1], tree[branch]))
        (expected,) = Run(decoder, 1, 90)([(0, 0, tokens)])
        torch.testing.assert_close(made[draft + 1], expected[-1], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_window_hides_what_is_before_it(
    checkpoint: Callable[[str], Path], prompts: torch.Tensor
) -> None:
    decoder = loaded(checkpoint("mistral"))
    window = max(decoder.spec.windows)
    layers = decoder.spec.num_layers
    run = Run(decoder, 1, 90)
    (plain,) = run([(0, 0, prompts[0])])
    reach = layers * (window - 1) + 1
    assert 0 < reach < 90
    other = prompts[0].clone()
    other[: 90 - reach] = (other[: 90 - reach] + 1) % 320
    (changed,) = Run(decoder, 1, 90)([(0, 0, other)])
    assert torch.equal(plain[-1], changed[-1])
    other[90 - reach] = (other[90 - reach] + 1) % 320
    (changed,) = Run(decoder, 1, 90)([(0, 0, other)])
    assert not torch.equal(plain[-1], changed[-1])


def test_only_chunks_shorter_than_the_context_have_no_step(
    checkpoint: Callable[[str], Path],
) -> None:
    decoder = loaded(checkpoint("llama4_dense"))
    assert fused_step(decoder, PAGE) is None
    decoder.spec = replace(decoder.spec, windows=(0,) * decoder.spec.num_layers)
    assert (fused_step(decoder, PAGE) is None) == bool(decoder.spec.head_dim % WIDEST)


@torch.inference_mode()
def test_nan_reaches_only_the_rows_that_attend_to_it(
    checkpoint: Callable[[str], Path], prompts: torch.Tensor
) -> None:
    decoder = loaded(checkpoint("llama"))
    run = Run(decoder, 2, 90)
    run([(0, 0, prompts[0, :40]), (1, 0, prompts[1, :40])])
    run.pool.data[run.table[1, 0], 0, 0, 3] = float("nan")
    first, second = run([(0, 40, prompts[0, 40:41]), (1, 40, prompts[1, 40:41])])
    assert torch.isfinite(first).all()
    assert torch.isnan(second).any()


def test_a_step_of_another_shape_is_refused(checkpoint: Callable[[str], Path]) -> None:
    decoder = loaded(checkpoint("llama"))
    step = fused_step(decoder, PAGE)
    assert step is not None
    assert not replace(step.shape, head_dim=12).fits(8)
    assert fused_step(decoder, 3) is None
