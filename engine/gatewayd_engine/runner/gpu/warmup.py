"""Warm-up: compilation of kernels and capture of CUDA graphs before the first step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from gatewayd_engine.kernels.attention.splits import PROGRAMS_EACH, num_multiprocessors
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.runner.gpu.cuda_graphs import Capture, sizes
from gatewayd_engine.runner.gpu.drafter_graphs import DrafterLaunches
from gatewayd_engine.runner.gpu.launch_bound import launch_bound
from gatewayd_engine.runner.gpu.piecewise_graphs import token_counts
from gatewayd_engine.runner.gpu.runner import DeviceRunner
from gatewayd_engine.runner.gpu.widths import captured_slots, most_lines, steps_of_widths
from gatewayd_engine.state.step_batch import BatchDrafts, StepBatch
from gatewayd_hooks.resources import PenaltyColumns

_CHUNK = 32


def _first_batches(max_lines: int, max_tokens: int, max_len: int) -> list[StepBatch]:
    """Return batches of each kind: a prompt, a prompt with a decoding sequence, decoding only."""
    chunk = min(_CHUNK, max_tokens - 1, max_len)
    kinds = [[chunk], [1, chunk], [1]]
    return [_batch(counts) for counts in kinds if len(counts) <= max_lines and min(counts) > 0]


def _batch(counts: list[int], num_ids: int = 1) -> StepBatch:
    """Make a batch of consecutive rows, each of which computes its first tokens.

    Args:
        counts: tokens of each row.
        num_ids: number of distinct token ids, as far as there are tokens.
    """
    n, lengths = len(counts), np.array(counts, np.int64)
    places = np.concatenate([np.arange(count) for count in counts])
    return StepBatch(
        slots=np.arange(n, dtype=np.int32),
        rows=np.arange(n),
        sequences=np.arange(n),
        starts=np.zeros(n, np.int64),
        counts=lengths,
        num_decode=int(np.count_nonzero(lengths == 1)),
        ids=places % num_ids,
        cache_positions=places,
        positions=places,
        last=np.cumsum(lengths) - 1,
        samples=np.ones(n, np.bool_),
        block_table=np.zeros((n, 1), np.int64),
        drafts=None,
    )


def _drafted_batches(
    max_lines: int, max_tokens: int, max_len: int, multiprocessors: int
) -> list[StepBatch]:
    """Return batches with draft trees: one mixed with a prompt, and some of each width.

    Attention is compiled for each width and each number of KV splits. Trees launch every kernel
    that chains do.

    Args:
        max_lines: most sequences of a step.
        max_tokens: most tokens of a step.
        max_len: most tokens of a sequence.
        multiprocessors: multiprocessors of the device.
    """
    made, chunk = [], min(_CHUNK, max_tokens - 3, max_len)
    if max_lines > 1 and chunk > 0 and max_len >= 3:
        made.append(_drafted_batch([3, chunk], 1))
    for fewest, width in steps_of_widths():
        most = most_lines(fewest, width, max_lines, max_tokens)
        if not most or fewest > max_len:
            break
        made += [
            _drafted_batch([fewest, *[2] * (lines - 1)], lines)
            for lines in _lines_of_parts(most, multiprocessors)
        ]
    return made


def _lines_of_parts(most: int, multiprocessors: int) -> list[int]:
    """Return batch sizes up to ``most`` that together use all numbers of KV splits.

    A context has 16, 4 or 1 splits, depending on the number of programs, so that among powers of 4
    each occurs. No context is split with more sequences than a fourth of the programs that occupy
    the device.
    """
    lines, chosen = 1, []
    while lines < most and lines <= PROGRAMS_EACH * multiprocessors // 4:
        chosen.append(lines)
        lines *= 4
    return [*chosen, min(lines, most)]


def _drafted_batch(counts: list[int], num_drafted: int) -> StepBatch:
    """Make a batch whose first sequences have drafts, all children of one token; others prefill."""
    each = np.array(counts, np.int64)
    drafts = BatchDrafts(
        counts=np.where(np.arange(len(each)) < num_drafted, each - 1, 0),
        tokens=np.zeros((len(each), counts[0] - 1), np.int32),
        parents=np.full((len(each), counts[0] - 1), -1, np.int32),
        probs=None,
        source=np.full(len(each), -1, np.int64),
    )
    return replace(_batch(counts), num_decode=num_drafted, drafts=drafts)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection, which may free device memory and so invalidate a capture."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def warm(
    runner: DeviceRunner,
    kernels: Kernels,
    capture: Capture | None,
    progress: Callable[[str, float], None],
    choose: Callable[[list[int]], None] = lambda sizes: None,
    *,
    has_drafts: bool = False,
    drafter: DrafterLaunches | None = None,
) -> None:
    """Compile kernels that are compiled at their first launch, and capture steps.

    Kernels are compiled separately for each launch mode. The choice of the mode needs steps without
    drafts only; the rest is compiled once the mode is known.

    Args:
        runner: runner of an engine without sequences.
        kernels: kernels of its device.
        capture: captures steps; None launches every kernel separately.
        progress: receives the stage and its fraction.
        choose: autotunes kernels for the token counts that will be captured.
        has_drafts: whether steps with drafts are to be expected.
        drafter: launches of the drafter.
    """
    limits = runner.max_lines, runner.max_tokens, runner.max_len
    plain = [partial(_launch, runner, batch) for batch in _first_batches(*limits)]
    rest: list[Callable[[], None]] = []
    if has_drafts:
        batches = _drafted_batches(*limits, num_multiprocessors(runner.device))
        rest += [partial(_launch, runner, batch) for batch in batches]
    if drafter is not None:
        rest.append(drafter.compile)
    rest.append(partial(_compile_rare, runner, kernels))
    share = len(plain) / len(plain + rest)
    report = partial(progress, "compiling kernels")
    _do_all(plain, lambda part: report(share * part))

    def compile_rest(first: Sequence[Callable[[], None]] = ()) -> None:
        _do_all([*first, *rest], lambda part: report(share + (1 - share) * part))

    if capture is None:
        compile_rest()
        if drafter is not None:
            drafter.close()
        return
    with gc_paused():
        # First, as matmuls are tuned for these token counts too.
        mixed = _mixed_sizes(runner)
        # A draft model's captures have the same numbers of tokens, or twice as many.
        drafted_slots = captured_slots(runner.max_lines) if has_drafts else ()
        was_early = kernels.launches_early
        choose(sorted({*sizes(runner.max_lines), *mixed, *drafted_slots}))
        # Kernels are compiled for one launch mode: in the other one, these again.
        compile_rest(plain if kernels.launches_early != was_early else ())
        # Before decode steps, which are smaller and reuse this memory.
        runner.capture_pieces(mixed, capture, lambda part: progress("capturing mixed steps", part))
        if has_drafts:
            runner.capture_drafted(
                capture, lambda part: progress("capturing steps with drafts", part)
            )
        if drafter is not None:
            drafter.capture(capture, lambda part: progress("capturing the drafter", part))
        runner.capture(
            sizes(runner.max_lines), capture, lambda part: progress("capturing decode steps", part)
        )


def _do_all(launches: Sequence[Callable[[], None]], progress: Callable[[float], None]) -> None:
    for done, launch in enumerate(launches):
        progress(done / len(launches))
        launch()
    progress(1.0)


def _launch(runner: DeviceRunner, batch: StepBatch) -> None:
    runner.launch(batch).result()


def _mixed_sizes(runner: DeviceRunner) -> list[int]:
    """Return the token counts of steps with prompts for which a capture pays off."""
    counts = token_counts(runner.max_tokens)
    if runner.device.type == "cpu":
        return counts  # a CPU has no launch queue to measure
    # Equal tokens would all be routed to the same few experts.
    num_ids = runner.logits.shape[1]
    return launch_bound(
        counts,
        lambda count: runner.launch(_batch([min(count, runner.max_len)], num_ids)),
        lambda: torch.cuda.synchronize(runner.device),
    )


@torch.inference_mode()
def _compile_rare(runner: DeviceRunner, kernels: Kernels) -> None:
    """Launch kernels that only some requests need, on meaningless logits.

    Triton compiles a kernel separately for each dtype, and for addresses that are not aligned.
    """
    for n in (1, 4):
        raw = runner.logits[:1].expand(n, -1).contiguous()
        index = torch.zeros((2, n), dtype=torch.int32, device=raw.device)
        for logits in (raw, raw.float()):
            for positions in index:
                tokens, _ = kernels.sample(logits, index[0], positions, runner.sampling)
        kernels.logprobs(raw, tokens, 1)
        # As logits processors and guides use them.
        logits, lines = raw.float(), torch.arange(2 * n, device=raw.device).view(2, n) % n
        kernels.penalise(logits, lines[0], lines[1], _no_penalties(n, logits))
        words = -(-logits.shape[1] // 32)
        every = torch.full((n, words), -1, dtype=torch.int32, device=raw.device)
        kernels.mask(logits, every, lines[0])


def _no_penalties(rows: int, logits: torch.Tensor) -> PenaltyColumns:
    """Return penalty columns of rows that have seen no token."""
    device = logits.device
    nothing = torch.zeros((1, logits.shape[1]), device=device)
    nowhere, free = torch.full((rows,), -1, device=device), torch.zeros(rows, device=device)
    return PenaltyColumns(nothing.bool(), nowhere, nothing.int(), nowhere, free + 1, free, free)
