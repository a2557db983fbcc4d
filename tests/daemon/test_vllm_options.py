"""A real daemon with the embedded model, started by a command line of vLLM."""

from __future__ import annotations

import httpx
import pytest

from tests.daemon.conftest import StartDaemon
from tests.daemon.forked_daemons import SERVE

OPTIONS = (
    *("--gpu-memory-utilization", "0.90", "--swap-space", "0.25", "--tensor-parallel-size", "1"),
    *("--kv-cache-dtype", "fp8_e5m2", "--block-size", "8", "--enable-prefix-caching"),
    *("--max_num_seqs=3", "--max-model-len", "1k", "--seed", "5", "--dtype", "float"),
    *(
        "--served-model-name",
        "mine",
        "ours",
        "--speculative-config.method=ngram",
        "--trust-remote-code",
    ),
    *("--disable-log-requests", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)


@pytest.fixture
def command() -> tuple[str, ...]:
    return (*SERVE, "nano", "--host", "127.0.0.1", "--port", "0", *OPTIONS)


def test_a_daemon_started_by_vllms_names_answers(
    start_daemon: StartDaemon, command: tuple[str, ...]
) -> None:
    daemon = start_daemon(command)
    models = httpx.get(f"{daemon.url}/v1/models").json()["data"]
    assert [(model["id"], model["root"], model["max_model_len"]) for model in models] == [
        ("mine", "mine", 1000),
        ("ours", "mine", 1000),
    ]
    body = {"model": "ours", "prompt": "The sun", "max_tokens": 8, "ignore_eos": True}
    answer = httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=60).json()
    assert answer["usage"]["completion_tokens"] == 8
    metrics = httpx.get(f"{daemon.url}/metrics").text
    assert 'block_size="8"' in metrics
    assert daemon.stop() == 0
