"""Doctor check of the kernels of engines on a CPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from gatewayd.cli.doctor import kernels
from gatewayd.config.tables import Config
from gatewayd_engine.kernels.llvm.processor import AVX2, AVX512, NEON, Processor


def judged(processor: Processor | None, **tables: dict[str, Any]) -> tuple[str, str]:
    """State and text, on a processor."""
    finding = kernels.judge(Config.model_validate(tables), processor)
    return finding.state, finding.text


@pytest.mark.parametrize("processor", [AVX2, AVX512, NEON])
def test_the_kernels_of_a_supported_processor_are_named_by_its_kind(processor: Processor) -> None:
    state, text = judged(processor)
    assert state == "ok"
    assert text.startswith(f"{processor.kind}, compiled for")


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ({"engine": {"cpu_kernels": "torch"}}, "[engine] cpu_kernels"),
        ({"model": {"dtype": "bfloat16"}}, "[model] dtype"),
    ],
)
def test_a_setting_that_selects_torch_is_named(tables: dict[str, Any], reason: str) -> None:
    state, text = judged(AVX2, **tables)
    assert (state, text.startswith("torch's")) == ("ok", True)
    assert reason in text


def test_a_processor_without_kernels_is_a_warning() -> None:
    state, text = judged(None)
    assert (state, "AVX2" in text) == ("warning", True)


@pytest.mark.parametrize(("size", "state"), [(8, "warning"), (16, "ok"), (24, "warning")])
def test_a_page_size_that_fits_no_vector_is_a_warning(size: int, state: str) -> None:
    found, text = judged(AVX512, engine={"page_size_tokens": size})
    assert found == state
    assert ("page_size_tokens" in text) is (state == "warning")


def test_an_engine_on_a_gpu_has_those_of_the_gpu() -> None:
    config = Config.model_validate({"engine": {"device": "cuda"}})
    assert "GPU" in kernels.kernels(config).text


def test_a_missing_llvmlite_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "llvmlite"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "llvmlite", None)  # an import raises ImportError
    finding = kernels.kernels(Config.model_validate({"engine": {"device": "cpu"}}))
    assert (finding.state, "llvmlite" in finding.text) == ("warning", True)


def test_the_check_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from gatewayd.cli.doctor.kernels import kernels\n"
        "from gatewayd.config.tables import Config\n"
        "print(kernels(Config()).subject, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["kernels", "False"]
