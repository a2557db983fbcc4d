"""``gatewayd bench``: run against the fake server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import typer
from gatewayd.cli.bench.cli import bench
app = typer.Typer()
app.command()(bench)
app()
"""


WITHOUT_PLOTEXT = "import sys; sys.modules['plotext'] = None\n"
"""Importing it fails as if it were not installed."""


async def run(*args: str, program: str = PROGRAM) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        *args,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def test_json_holds_every_level_and_every_percentile(server: Any) -> None:
    server.gap = 0.01
    code, out, err = await run(
        *("--url", server.url, "--api-key", "k", "--concurrency", "1,4", "--rate", "300"),
        *("--requests", "8", "--warmup", "1", "--output-tokens", "3", "--json"),
    )
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["model"] == "fake"
    assert server.keys == ["Bearer k"]
    assert [(level["load"], level["value"]) for level in document["levels"]] == [
        ("concurrency", 1),
        ("concurrency", 4),
        ("rate", 300),
    ]
    for level in document["levels"]:
        assert level["succeeded"] == 8
        assert level["errors"] == {}
        assert level["output_tokens"] == 24
        assert level["output_tokens_per_second"] > 0
        for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
            spread = level[name]
            assert 0 <= spread["p50"] <= spread["p90"] <= spread["p99"] <= spread["max"]


async def test_a_sweep_prints_a_table_and_a_plot(server: Any) -> None:
    code, out, err = await run(
        *("--url", server.url, "--concurrency", "1,2", "--requests", "4", "--warmup", "0"),
        *("--output-tokens", "2", "--endpoint", "chat"),
    )
    assert (code, err) == (0, "")
    assert "c 1" in out
    assert "c 2" in out
    assert "TTFT p50, ms" in out  # the plot's legend
    assert "\x1b" not in out  # no colours into a pipe
    assert isinstance(server.bodies[0]["messages"][0]["content"], str)


async def test_a_sweep_without_plotext_prints_the_table_and_what_is_missing(server: Any) -> None:
    code, out, err = await run(
        *("--url", server.url, "--concurrency", "1,2", "--requests", "2", "--warmup", "0"),
        *("--output-tokens", "2"),
        program=WITHOUT_PLOTEXT + PROGRAM,
    )
    assert (code, err) == (0, "")
    assert "c 2" in out
    assert out.endswith("no plot: plotext is not installed\n")


async def test_errors_are_shown_by_code_and_success_of_some_is_success(server: Any) -> None:
    server.fail_every = 2
    code, out, _ = await run(
        *("--url", server.url, "--concurrency", "1", "--requests", "4", "--warmup", "0"),
    )
    assert code == 0
    assert "errors at concurrency 1: 2 x overloaded" in out


async def test_failure_of_all_is_failure(server: Any) -> None:
    server.fail_every = 1
    code, out, _ = await run(
        *("--url", server.url, "--concurrency", "1", "--requests", "2", "--warmup", "0"),
    )
    assert code == 1
    assert "2 x overloaded" in out


async def test_a_server_that_is_not_there_is_said_in_a_sentence(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    code, out, err = await run("--url", url)
    assert (code, out) == (1, "")
    assert err.startswith(f"cannot benchmark {url}: ")
    assert err.endswith("(connection)\n")
    assert "Traceback" not in err


async def test_bad_options_name_the_option_and_the_value() -> None:
    for args, words in (
        (("--concurrency", "1,x"), ("--concurrency", "'x'", "whole number above 0")),
        (("--concurrency", "0"), ("--concurrency", "'0'")),
        (("--rate", "-1"), ("--rate", "'-1'", "above 0")),
    ):
        code, _, err = await run(*args)
        assert code == 2
        for word in words:
            assert word in err


async def test_a_dataset_is_sent_as_it_is(server: Any, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one", "max_tokens": 2}\n"two"\n', encoding="utf-8")
    code, _, _ = await run(
        *("--url", server.url, "--concurrency", "1", "--requests", "3", "--warmup", "0"),
        *("--dataset", str(path), "--output-tokens", "4", "--json"),
    )
    assert code == 0
    assert [(body["prompt"], body["max_tokens"]) for body in server.bodies] == [
        ("one", 2),
        ("two", 4),
        ("one", 2),
    ]
    assert "ignore_eos" not in server.bodies[0]
