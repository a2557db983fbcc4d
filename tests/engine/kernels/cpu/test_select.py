"""Selection of compiled kernels: with a warning, torch computes where they cannot run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest

from gatewayd_engine.kernels.cpu import select
from gatewayd_engine.kernels.cpu.select import kernels_name, thread_team
from gatewayd_engine.kernels.llvm.processor import AVX2, AVX512, NEON, Processor
from tests.engine.core.conftest import build
from tests.engine.core.prompts import answers, runner_of


def missing() -> Processor:
    raise ImportError("No module named 'llvmlite'")


def unloadable() -> Processor:
    raise OSError("libllvmlite.so: cannot open shared object file")


def unknown() -> None:
    return None


Detection = Callable[[], Processor | None]
REASONS: dict[Detection, str] = {
    missing: "No module named 'llvmlite'",
    unloadable: "libllvmlite.so: cannot open",
    unknown: "neither AVX2 with FMA nor NEON",
}


@pytest.fixture(params=REASONS)
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Detection]:
    """Detection of a processor on a machine without kernels."""
    monkeypatch.setattr(select, "host", request.param)
    select._processor.cache_clear()
    yield request.param
    select._processor.cache_clear()


def tokens(*, compiled: bool, cpu_kernels: str = "auto") -> list[list[int]]:
    """Greedy tokens of the embedded model, of an engine that has compiled kernels or not."""
    engine = build(cpu_kernels=cpu_kernels)
    assert (runner_of(engine)._fused is not None) == compiled
    found = answers(engine)
    engine.core.strategies.close()
    return found


@cache
def of_torch() -> list[list[int]]:
    return tokens(compiled=False, cpu_kernels="torch")


def test_there_is_no_team_and_one_warning(
    host: Detection, caplog: pytest.LogCaptureFixture
) -> None:
    assert thread_team(2) is None
    assert thread_team(1) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "compiled CPU kernels are not used, which is slower" in record.getMessage()
    assert REASONS[host] in record.getMessage()


def test_an_engine_without_a_team_computes_in_torch(host: Detection) -> None:
    assert tokens(compiled=False) == of_torch()


def test_compiled_kernels_and_torch_choose_the_same_tokens() -> None:
    if thread_team(1) is None:
        pytest.skip("no compiled kernels for this processor")
    assert tokens(compiled=True) == of_torch()


def test_callers_that_need_the_same_size_share_a_team() -> None:
    if thread_team(1) is None:
        pytest.skip("no compiled kernels for this processor")
    assert thread_team(2) is thread_team(2)
    assert thread_team(1) is not thread_team(2)


def test_without_kernels_the_name_is_that_of_torch(host: Detection) -> None:
    assert kernels_name("auto") == kernels_name("torch") == "torch"


def test_the_name_of_kernels_tells_processors_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "matmul_code", lambda *_: None)
    others = replace(AVX2, cpu="znver4"), replace(AVX2, features="+avxvnni")
    names = set()
    for processor in (AVX2, AVX512, NEON, *others):
        monkeypatch.setattr(select, "host", lambda found=processor: found)
        select._processor.cache_clear()
        names.add(kernels_name("auto"))
        assert kernels_name("auto") in names
        assert kernels_name("torch") == "torch"
    select._processor.cache_clear()
    assert len(names - {"torch"}) == 5
