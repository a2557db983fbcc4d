"""Logits processors: equal their formulas in plain Python."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from gatewayd_hooks.logits import LogitsProcessor
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.logits import Sampling
from gatewayd_logits_bias.strategy import Bias
from gatewayd_logits_min_tokens.strategy import MinTokens
from gatewayd_logits_penalties.strategy import Penalties
from gatewayd_logits_penalties.table import RowTable

VOCAB = 40
EOS = (2, 3)


def opened(processor: LogitsProcessor, rows: int = 8) -> LogitsProcessor:
    processor.open(engine_resources(vocab_size=VOCAB, max_running=rows, eos_token_ids=EOS))
    return processor


def admit(
    processor: LogitsProcessor,
    params: Sampling,
    prompt: Sequence[int] = (1,),
    output: Sequence[int] = (),
    row: int = 0,
) -> bool:
    return processor.admit(row, params, np.array(prompt, np.int32), np.array(output, np.int32))


def applied(processor: LogitsProcessor, logits: list[float], row: int = 0) -> list[float]:
    tensor = torch.tensor([logits])
    processor.apply(tensor, torch.tensor([0]), torch.tensor([row]))
    changed: list[float] = tensor[0].tolist()
    return changed


def penalised(
    logits: Sequence[float], params: Sampling, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """The formulas, token by token."""
    result = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            if logit > 0:
                logit /= params.repetition_penalty
            else:
                logit *= params.repetition_penalty
        count = sum(1 for other in output if other == token)
        logit -= params.frequency_penalty * count
        logit -= params.presence_penalty * (1 if count else 0)
        result.append(logit)
    return result


def test_penalties_of_a_changing_batch_are_those_of_the_formulas() -> None:
    """Rows come and go, are preempted and grow, with every mixture of penalties."""
    draw = random.Random(6)
    processor = opened(Penalties())
    rows: dict[int, tuple[Sampling, list[int], list[int]]] = {}
    for _ in range(400):
        for row in range(8):
            if row in rows and draw.random() < 0.1:
                processor.remove(row)
                del rows[row]
            elif row not in rows and draw.random() < 0.5:
                params = Sampling(
                    frequency_penalty=draw.choice([0.0, 0.0, draw.uniform(-2, 2)]),
                    presence_penalty=draw.choice([0.0, 0.0, draw.uniform(-2, 2)]),
                    repetition_penalty=draw.choice([1.0, 1.0, draw.uniform(0.2, 2)]),
                )
                prompt = [draw.randrange(VOCAB) for _ in range(draw.randint(1, 12))]
                output = [draw.randrange(VOCAB) for _ in range(draw.randint(0, 12))]
                wanted = admit(processor, params, prompt, output, row)
                neutral = Sampling() == params
                assert wanted is not neutral
                if wanted:
                    rows[row] = params, prompt, output
        chosen = draw.sample(sorted(rows), len(rows) // 2)
        if not chosen:
            continue
        lines = draw.sample(range(10), len(chosen))
        logits = torch.randn(10, VOCAB)
        before = logits.tolist()
        processor.apply(logits, torch.tensor(lines), torch.tensor(chosen))
        for line in range(10):
            if line in lines:
                expected = penalised(before[line], *rows[chosen[lines.index(line)]])
                assert logits[line].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)
            else:
                assert logits[line].tolist() == before[line]
        tokens = [draw.randrange(VOCAB) for _ in chosen]
        processor.append(torch.tensor(chosen), torch.tensor(tokens))
        for row, token in zip(chosen, tokens, strict=True):
            rows[row][2].append(token)


def test_an_impossible_token_stays_impossible_under_every_penalty() -> None:
    processor = opened(Penalties())
    params = Sampling(repetition_penalty=0.5, frequency_penalty=-2.0, presence_penalty=-2.0)
    admit(processor, params, (1,), (1, 1))
    assert applied(processor, [-math.inf] * VOCAB) == [-math.inf] * VOCAB


def test_tables_take_memory_only_for_the_rows_that_use_them() -> None:
    table = RowTable(256, VOCAB, torch.bool, torch.device("cpu"))
    assert len(table.data) == 0
    for row in (200, 7, 31):
        table.add(row)
    assert len(table.data) <= 4
    for row in range(8, 30):
        table.add(row)
        table.release(row)
    assert len(table.data) <= 4
    for row in set(range(256)) - {200, 7, 31}:
        table.add(row)
    assert len(table.data) == 256


def test_a_table_line_is_blank_when_it_is_given_out_again() -> None:
    table = RowTable(4, VOCAB, torch.int32, torch.device("cpu"))
    table.add(1)[:] = 9
    table.release(1)
    assert not table.add(3).any()


def test_bias_adds_to_the_named_tokens_and_pairs_of_one_token_add_up() -> None:
    processor = opened(Bias())
    assert admit(processor, Sampling(logit_bias=[(3, 1.5), (7, -100.0), (3, 2.0)]))
    expected = [1.0] * VOCAB
    expected[3], expected[7] = 4.5, -99.0
    assert applied(processor, [1.0] * VOCAB) == expected


def test_bias_of_several_rows_lands_on_their_own_lines() -> None:
    processor = opened(Bias())
    for row, pairs in enumerate([[(0, 1.0)], [(0, 2.0), (1, 3.0)], [(39, 4.0)]]):
        admit(processor, Sampling(logit_bias=pairs), row=row)
    logits = torch.zeros(5, VOCAB)
    processor.apply(logits, torch.tensor([4, 0, 2]), torch.tensor([1, 2, 0]))
    changed = {(i, j): logits[i, j].item() for i, j in logits.nonzero().tolist()}
    assert changed == {(4, 0): 2.0, (4, 1): 3.0, (0, 39): 4.0, (2, 0): 1.0}


def test_bias_is_not_wanted_without_pairs() -> None:
    assert not admit(opened(Bias()), Sampling())


def impossible(processor: LogitsProcessor) -> set[int]:
    changed = applied(processor, [0.5] * VOCAB)
    assert set(changed) <= {0.5, -math.inf}
    return {token for token, logit in enumerate(changed) if logit == -math.inf}


def test_no_end_token_is_possible_until_enough_are_generated() -> None:
    processor = opened(MinTokens())
    assert admit(processor, Sampling(min_tokens=3, stop_token_ids=[9]), output=(5,))
    for _ in range(2):
        assert impossible(processor) == {2, 3, 9}
        processor.append(torch.tensor([0]), torch.tensor([5]))
    assert impossible(processor) == set()


def test_with_ignore_eos_only_the_stop_tokens_are_impossible() -> None:
    processor = opened(MinTokens())
    admit(processor, Sampling(min_tokens=3, stop_token_ids=[9, 3], ignore_eos=True))
    assert impossible(processor) == {3, 9}


@pytest.mark.parametrize(
    ("params", "output"),
    [
        (Sampling(), ()),
        (Sampling(min_tokens=2), (5, 5)),
        (Sampling(min_tokens=2), (5, 5, 5)),
        (Sampling(min_tokens=2, ignore_eos=True), ()),
    ],
)
def test_min_tokens_is_not_wanted_when_nothing_is_to_be_kept_off(
    params: Sampling, output: Sequence[int]
) -> None:
    assert not admit(opened(MinTokens()), params, output=output)


def test_rows_with_and_without_enough_tokens_share_a_batch() -> None:
    processor = opened(MinTokens())
    admit(processor, Sampling(min_tokens=1), row=0)
    admit(processor, Sampling(min_tokens=2, stop_token_ids=[30]), row=1)
    processor.append(torch.tensor([1, 0]), torch.tensor([5, 5]))
    logits = torch.zeros(2, VOCAB)
    processor.apply(logits, torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert logits.isinf().nonzero().tolist() == [[1, 2], [1, 3], [1, 30]]


class Layouts:
    """How often a processor has laid out its pairs for a batch."""

    def __init__(self, processor: object, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        lay_out = getattr(processor, "_lay_out")  # noqa: B009 - private, and of two classes

        def counting(index: torch.Tensor, rows: torch.Tensor) -> None:
            self.count += len(index) > 0
            lay_out(index, rows)

        monkeypatch.setattr(processor, "_lay_out", counting)


def test_bias_and_min_tokens_of_a_changing_batch_are_those_of_a_dictionary() -> None:
    draw = random.Random(5)
    bias, minimum = opened(Bias()), opened(MinTokens())
    wishes: dict[int, Sampling] = {}
    lengths: dict[int, int] = {}
    for _ in range(600):
        row = draw.randrange(8)
        if row in wishes and draw.random() < 0.2:
            for processor in (bias, minimum):
                processor.remove(row)
            del wishes[row]
        elif row not in wishes and draw.random() < 0.4:
            pairs = [(draw.randrange(VOCAB), draw.uniform(-2, 2)) for _ in range(3)]
            wishes[row] = Sampling(
                logit_bias=pairs, min_tokens=draw.randrange(1, 12), stop_token_ids=[row + 10]
            )
            lengths[row] = 0
            assert admit(bias, wishes[row], row=row)
            assert admit(minimum, wishes[row], row=row)
        rows = draw.sample(sorted(wishes), draw.choice([len(wishes), len(wishes) // 2]))
        if not rows:
            continue
        logits = torch.randn(len(rows) + 1, VOCAB)
        wanted = logits.clone()
        index = draw.sample(range(len(rows) + 1), len(rows))
        for line, of in zip(index, rows, strict=True):
            for token, addend in wishes[of].logit_bias:
                wanted[line, token] += addend
            if lengths[of] < wishes[of].min_tokens:
                wanted[line, [*EOS, of + 10]] = -torch.inf
            lengths[of] += 1
        for processor in (bias, minimum):
            processor.apply(logits, torch.tensor(index), torch.tensor(rows))
            processor.append(torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64))
        torch.testing.assert_close(logits, wanted)


@pytest.mark.parametrize("kind", [Bias, MinTokens])
def test_nothing_is_laid_out_anew_while_the_batch_stays(
    kind: type[Bias | MinTokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = opened(kind())
    layouts = Layouts(processor, monkeypatch)
    for row, least in ((0, 30), (1, 60)):
        admit(processor, Sampling(logit_bias=[(7, 1.0)], min_tokens=least), row=row)
    both = torch.tensor([0, 1])
    for _ in range(100):
        processor.apply(torch.zeros(2, VOCAB), both, both)
        processor.append(both, both)
    # min_tokens once more when the first row has enough; with both it has nothing to do.
    assert layouts.count == (1 if kind is Bias else 2)
