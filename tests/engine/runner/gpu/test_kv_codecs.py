"""FP8 KV pools on a device runner: tokens and bytes equal the CPU codec's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gatewayd_engine.process.config import EngineConfigError, StrategyChoice
from gatewayd_engine.runner import backend
from gatewayd_kv_fp8.strategy import Fp8Codec
from tests.engine.core.conftest import build
from tests.engine.core.prompts import PROMPTS
from tests.gpu.engines import follow, greedy

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
PLAIN = StrategyChoice("fp8", {"scale": "none"})
CLOSE = 0.5
"""How far apart two logits may be and still change places, where a number was between two codes."""


@pytest.mark.parametrize("more", [{}, {"cascade_attention": True}, {"kv_pages": 26}])
def test_tokens_are_those_of_the_codec_on_a_cpu(
    make_device_engine: Make, make_engine: Make, more: dict[str, Any]
) -> None:
    """Alone, with prefixes that are shared, and where sequences are preempted."""
    engine = make_device_engine(kv_codec=PLAIN, **more)
    reference = greedy(make_engine(kv_codec=PLAIN), PROMPTS, 12)
    gaps = follow(engine, PROMPTS, reference, CLOSE)
    assert len(gaps) <= 3


def test_pages_have_the_bytes_of_their_records(
    make_device_engine: Make, device_runner: Callable[[Any], Any]
) -> None:
    engine = make_device_engine(kv_codec=PLAIN)
    floats = make_device_engine()
    assert engine.info.page_bytes * 4 == floats.info.page_bytes
    assert engine.info.kv_record_bytes * 4 == floats.info.kv_record_bytes
    assert engine.info.strategies["kv_codec"] == "fp8"
    data = device_runner(engine)._drafted._verifier._pool.data
    assert data.dtype == torch.float8_e4m3fn
    engine.generate(PROMPTS[0], max_tokens=3, ignore_eos=True)
    assert data.float().abs().amax() > 0


@pytest.mark.parametrize("drafter", ["ngram"])
def test_drafts_are_verified_over_them(
    make_device_engine: Make, make_engine: Make, drafter: str
) -> None:
    prompts = [2 * prompt for prompt in PROMPTS]
    engine = make_device_engine(
        kv_codec=PLAIN,
        drafter=StrategyChoice(drafter),
        spec_controller=StrategyChoice("fixed"),
    )
    reference = greedy(make_engine(kv_codec=PLAIN), prompts, 12)
    follow(engine, prompts, reference, CLOSE)
    assert engine.core.stats.draft_tokens > 0


def test_e5m2_is_read_as_that(
    make_device_engine: Make, make_engine: Make, device_runner: Callable[[Any], Any]
) -> None:
    choice = StrategyChoice("fp8", {"scale": "none", "format": "e5m2"})
    engine = make_device_engine(kv_codec=choice)
    assert device_runner(engine)._drafted._verifier._pool.data.dtype == torch.float8_e5m2
    reference = greedy(make_engine(kv_codec=choice), PROMPTS[:3], 12)
    assert len(follow(engine, PROMPTS[:3], reference, CLOSE)) <= 2


def test_floats_that_a_gpu_lacks_are_refused_in_a_sentence(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "eight_bit_floats", lambda device: (torch.float8_e5m2,))
    sentence = (
        r"^kv_codec fp8 writes float8_e4m3fn, but kernels of device 'cpu' read only float8_e5m2: .*"
        r' set \[kv_codec.fp8\] format to "e5m2"'
    )
    with pytest.raises(EngineConfigError, match=sentence):
        make_device_engine(kv_codec=PLAIN)
    make_device_engine(kv_codec=StrategyChoice("fp8", {"scale": "none", "format": "e5m2"}))


def test_records_that_are_no_numbers_are_refused_in_a_sentence(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("int8", "fp8"):
        with pytest.raises(
            EngineConfigError, match=rf"^kv_codec is '{name}', but kernels .* scale = "
        ):
            make_device_engine(kv_codec=StrategyChoice(name))
    # A CPU asks nobody what they are.
    build(kv_codec=StrategyChoice("int8")).core.strategies.close()
    monkeypatch.setattr(Fp8Codec, "record_bytes", lambda self, head_dim, dtype: head_dim + 2)
    with pytest.raises(
        EngineConfigError, match=r"^kv_codec fp8 returned 66 bytes per record; it must be 64"
    ):
        make_device_engine(kv_codec=PLAIN)
