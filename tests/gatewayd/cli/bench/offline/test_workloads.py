"""Offline workloads: stable ids, parts and fits."""

from __future__ import annotations

import array
import hashlib

import pytest

from gatewayd.cli.bench.offline.workloads import WORKLOADS, Workload

# Of every request: the length of its prompt, its ids, its output length, as int32.
DIGESTS = {
    "decode_bs1_in128_out256": "bf89e8a23466f403",
    "decode_bs8_in128_out256": "0972e268d60b62a9",
    "decode_bs32_in128_out256": "ba538c958e8afe55",
    "decode_bs64_in128_out256": "44131e8252e2849f",
    "decode_bs128_in128_out256": "7d3d411b2ea7ff59",
    "decode_bs256_in128_out256": "e0c2945ad8f739dc",
    "prefill_64x4096_out1": "de1f80fdaca7bdb3",
    "chatlike_1000": "705bf9bcaec6ad96",
    "sharedprefix_1000x(1000+50)_out32": "7c7e15c3e78a2ef6",
    "long_16x16384_out128": "c10bed96d50f5118",
    "even_512x1000_out1000": "b195b6c24e4ff822",
}


def digest(workload: Workload) -> str:
    found = hashlib.sha256()
    for prompt, length in zip(workload.prompts, workload.output_lens, strict=True):
        found.update(array.array("i", [len(prompt), *prompt, length]).tobytes())
    return found.hexdigest()[:16]


def test_every_id_and_length_is_the_one_that_was_measured_with() -> None:
    made = [make(0) for make in WORKLOADS.values()]
    assert {workload.name: digest(workload) for workload in made} == DIGESTS


def test_another_offset_gives_other_prompts_of_the_same_kind() -> None:
    one, other = (WORKLOADS["shared"](offset) for offset in (0, 1000))
    assert one.shared[:16] != other.shared[:16]
    assert [*map(len, one.prompts)] == [*map(len, other.prompts)]
    assert one.output_lens == other.output_lens


def test_a_part_keeps_what_is_shared_and_at_least_one_of_each() -> None:
    part = WORKLOADS["shared"](0).scaled(0.01)
    assert (len(part.shared), [*map(len, part.own)], part.output_lens) == (10, [1] * 10, [1] * 10)
    assert part.shared == WORKLOADS["shared"](0).shared[:10]
    tiny = WORKLOADS["decode-1"](0).scaled(0.0001)
    assert (tiny.shared, [*map(len, tiny.own)], tiny.output_lens) == ([], [1], [1])


@pytest.mark.parametrize("name", ["long", "shared", "chat"])
def test_a_smaller_model_gets_ids_and_lengths_that_it_knows(name: str) -> None:
    whole = WORKLOADS[name](0)
    cut = whole.fitted(4096, 1024)
    assert max(max(prompt) for prompt in cut.prompts) < 4096
    for prompt, length in zip(cut.prompts, cut.output_lens, strict=True):
        assert len(prompt) + length <= 1024
        assert len(prompt) > len(cut.shared)
    assert len(cut.own) == len(whole.own)


def test_a_model_that_is_large_enough_gets_everything() -> None:
    for make in (WORKLOADS["long"], WORKLOADS["chat"]):
        assert make(0).fitted(128_256, 16_512) == make(0)
