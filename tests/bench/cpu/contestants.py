"""Contestants of the CPU comparison: gatewayd, llama.cpp's server, and Hugging Face generate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gatewayd_engine.model.embedded import folder
from tests.bench import servers
from tests.bench.cpu.models import ServedFile
from tests.bench.cpu.record import OURS
from tests.bench.cpu.workloads import SLOT_TOKENS
from tests.bench.servers import RunningServer

GENERATE_BATCHES = (1, 32)
_GENERATE_TOKENS = 128
_GENERATE_ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"},
    {},
)


@dataclass(frozen=True, slots=True)
class Contestants:
    """How servers are started.

    Attributes:
        llama_server: binary.
        llama_threads: threads that it computes with.
        serve: further options of ``gatewayd serve``.
    """

    llama_server: Path
    llama_threads: int
    serve: tuple[str, ...]

    def start(
        self, name: str, file: ServedFile, width: int, log: Path, kernels: Path | None = None
    ) -> AbstractContextManager[RunningServer]:
        """Run a server while the block lasts.

        Args:
            name: ``ours`` or ``llama``.
            file: what it serves.
            width: most requests at once.
            log: of its output.
            kernels: folder of compiled kernels, ours alone; None for the user's.

        Raises:
            RuntimeError: it does not serve.
        """
        port = servers.free_port()
        if name == OURS:
            environment = file.environment()
            if kernels is not None:
                environment["XDG_CACHE_HOME"] = str(kernels)
            command = servers.gatewayd(port, *file.options(), *self.serve)
            return servers.running(command, port, log, path="/readyz", env=environment)
        command = servers.llama_cpp(
            self.llama_server,
            file.gguf,
            port,
            slots=width,
            slot_tokens=SLOT_TOKENS,
            threads=self.llama_threads,
        )
        return servers.running(command, port, log, path="/health")


def generate(prompts: Sequence[object]) -> dict[int, float]:
    """Tokens a second of ``generate`` for each batch size, in processes of its own.

    Prompts are lists of token ids of the same length.

    Its threads may spin or sleep while they wait; which is better depends on how busy the machine
    is, and it is given the better of the two.
    """
    best: dict[int, float] = {}
    script = Path(__file__).parents[1] / "hf_generate.py"
    for environment in _GENERATE_ENVIRONMENTS:
        done = subprocess.run(
            [
                *(sys.executable, str(script), str(folder())),
                *("--batches", ",".join(map(str, GENERATE_BATCHES))),
                *("--output-tokens", str(_GENERATE_TOKENS)),
            ],
            input=json.dumps(prompts),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **environment},
        )
        for size, speed in json.loads(done.stdout).items():
            best[int(size)] = max(speed, best.get(int(size), 0.0))
    return best
