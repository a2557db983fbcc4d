"""The steps of the first run on a GPU, of ``make gpu`` and of ``make gpu-all``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec

from tests.gpu.kit.steps import Step

_ROWS = "decode-1,decode-8,decode-32,decode-64,decode-128,decode-256,prefill,chat,shared,long"
_FP8 = "--quantizer fp8 --kv-codec fp8 --set kv_codec.fp8.scale=none"
_QUICK = "nano and bfloat16 or pieces or launching or overlapping or captured or draft_model"
_CPU_SCALE = "--scale 0.02"
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Words:
    """What commands are made of.

    Attributes:
        device: where engines compute.
        out: folder of figures that stay.
        temporary: folder of those that do not.
        model: options of the 8B shape, on a CPU of a part of the embedded model's workloads.
        has_xdist: whether tests may run in several processes.
    """

    device: str
    out: str
    temporary: str
    model: str
    has_xdist: bool

    def offline(self, options: str, model: str | None = None) -> str:
        """Measure an engine. ``$CAPTURE`` is empty, or keeps steps from being captured."""
        model = self.model if model is None else model
        return (
            f"{_PYTHON} -m gatewayd bench offline --device {self.device} {model} {options} $CAPTURE"
        )

    def serve(self, options: str = "") -> str:
        """Measure a daemon."""
        return f"{_PYTHON} -m gatewayd bench serve --device {self.device} {self.model} {options}"

    def pytest(self, options: str, processes: int = 1) -> str:
        """Run tests for a GPU."""
        workers = f" -n {processes}" if processes > 1 and self.has_xdist else ""
        return (
            f"OUT={self.temporary} {_PYTHON} -m pytest -c tests/gpu/pytest.ini --rootdir . "
            f"-p no:cacheprovider -q -rfE --tb=short{workers} {options}"
        )


_PYTHON = shlex.quote(sys.executable)


def words(device: str, out: str, temporary: str, scale: str = "") -> Words:
    """See ``Words``; ``scale`` is for rehearsals."""
    model = "--model llama-8b" if device != "cpu" else _CPU_SCALE
    has_xdist = find_spec("xdist") is not None
    return Words(device, shlex.quote(out), shlex.quote(temporary), scale or model, has_xdist)


def first(w: Words) -> list[Step]:
    """The first minutes: what works, what does not, and the figures, in less than nine."""
    few = "--kv-memory 4GiB" if w.device != "cpu" else ""
    nano = "--scale 0.2" if w.device != "cpu" else _CPU_SCALE
    return [
        Step("env:machine", 20, "env.log", _MACHINE),
        Step("env:imports", 60, "env.log", f"{_PYTHON} -m tests.gpu.kit.machine"),
        # The embedded model: captured steps in bfloat16, float32 launch by launch, then served.
        Step(
            "nano:captured",
            100,
            "nano.log",
            w.offline(f"{few} --only decode-1,decode-64,chat", nano),
            kept=15,
        ),
        Step(
            "nano:uncaptured",
            60,
            "nano.log",
            w.offline(f"{few} --only decode-1,decode-64 --set engine.capture=off", nano),
            if_failed="nano:captured",
            then={"CAPTURE": "--set engine.capture=off"},
        ),
        Step(
            "nano:eager",
            60,
            "nano.log",
            w.offline(f"{few} --dtype float32 --only decode-8", nano),
            kept=10,
        ),
        Step(
            "nano:serve",
            60,
            "nano.log",
            f"{_PYTHON} -m tests.gpu.kit.serving {w.device}",
            kept=15,
        ),
        # Attention against the definition, whole engines against the CPU's.
        Step(
            "parity:attention",
            60,
            "parity.log",
            w.pytest("-m 'gpu and not slow' tests/gpu/test_attention.py", 3),
            kept=15,
        ),
        Step(
            "parity:engine",
            70,
            "parity.log",
            w.pytest(f"tests/gpu/test_engine.py -k '{_QUICK}'", 4),
            kept=15,
        ),
        # The rows of the table; what is done is in the file if the limit ends it.
        Step(
            "8b:offline",
            260,
            "bench.log",
            w.offline(f"--markdown --out {w.out}/offline.json --only {_ROWS}"),
            kept=195,
        ),
        Step(
            "8b:serve",
            120,
            "bench.log",
            w.serve(f"--markdown --out {w.out}/serve.json --only c1,c32,c256"),
            kept=40,
        ),
        # With what is left.
        Step(
            "more:kernels",
            150,
            "more.log",
            w.pytest("tests/gpu/test_kernels.py tests/gpu/test_pages.py", 6),
            kept=20,
        ),
        Step(
            "more:timeline",
            80,
            "more.log",
            f"{w.pytest('tests/gpu/test_timeline.py')}; status=$?; "
            f"cat {w.temporary}/timeline.json; exit $status",
        ),
        Step(
            "more:fp8",
            80,
            "more.log",
            w.offline(f"--markdown --only decode-1 {_FP8} --out {w.temporary}/fp8.json"),
        ),
        Step("more:quantized", 120, "more.log", w.pytest("tests/gpu/test_quantized.py", 6)),
    ]


_MACHINE = "nvidia-smi; nproc; free -g; nvcc --version | tail -2; gcc --version | head -1; true"


def gpu(w: Words) -> list[Step]:
    """``make gpu``: every row is measured first, and tests have what is left, in ten minutes."""
    tests = replace(w, temporary=w.out)
    return [
        Step(
            "bench:offline",
            270,
            "bench.log",
            w.offline(f"--markdown --out {w.out}/offline.json"),
            kept=160,
        ),
        Step(
            "bench:serve",
            150,
            "bench.log",
            w.serve(f"--markdown --out {w.out}/serve.json"),
            kept=80,
        ),
        Step(
            "bench:fp8",
            120,
            "bench.log",
            w.offline(f"--markdown --only even,decode-1 {_FP8} --out {w.out}/fp8.json"),
            kept=50,
        ),
        Step(
            "bench:gemm",
            60,
            "bench.log",
            f"{_PYTHON} tests/bench/gemm.py --json {w.out}/gemm.json",
            kept=20,
        ),
        # By itself: others on the device would be in its timeline.
        Step(
            "tests:timeline", 80, "tests.log", tests.pytest("tests/gpu/test_timeline.py"), kept=30
        ),
        Step(
            "tests:quick",
            500,
            "tests.log",
            tests.pytest("-m 'gpu and not slow' tests/gpu --ignore tests/gpu/test_timeline.py", 4),
            kept=100,
        ),
    ]


def everything(w: Words) -> list[Step]:
    """``make gpu-all``: the same without hurry, and the tests that compile for minutes."""
    tests = Step("tests:slow", 2 * _HOUR, "tests.log", w.pytest("-m 'gpu and slow' tests/gpu"))
    return [*(replace(step, seconds=_HOUR, kept=0) for step in gpu(w)), tests]


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps, and the seconds for all of them."""

    steps: Callable[[Words], list[Step]]
    seconds: float


PLANS = {
    "first": Plan(first, 530),
    "gpu": Plan(gpu, 580),
    "all": Plan(everything, 8 * _HOUR),
}
