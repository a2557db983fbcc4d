"""KV tiers: computed pages are found again after a restart and after a kill."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

NANO = ("-m", "gatewayd", "serve", "--port", "0")
PROMPT = "".join(f"def function_{k}(value):\n    return value + {k}\n\n" for k in range(16))
OTHERS = [f"class Other{k}:\n" + f"    field_{k} = {k}\n" * 40 for k in range(4)]


def environment(path: Path, **more: str) -> dict[str, str]:
    return {
        "GATEWAYD_KV_TIER__STRATEGIES": '["host", "disk"]',
        "GATEWAYD_KV_TIER__HOST__MEMORY": "1MiB",
        "GATEWAYD_KV_TIER__DISK__PATH": str(path),
        "GATEWAYD_PREEMPTION__STRATEGY": "swap",
        "GATEWAYD_ENGINE__KV_PAGES": "40",
        **more,
    }


def complete(daemon: Any, prompt: str, model: str = "nano") -> tuple[str, int, int]:
    """An answer's text, and the tokens of its prompt, all and cached ones."""
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0}
    answer = httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=60).json()
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["text"], usage["prompt_tokens"], cached


def tier_hits(daemon: Any) -> dict[str, int]:
    text = httpx.get(f"{daemon.url}/metrics", timeout=60).text
    found = re.findall(r'^gatewayd_kv_tier_hits_total\{.*tier="(\w+)".*\} (\S+)$', text, re.M)
    return {tier: int(float(count)) for tier, count in found}


def settled(folder: Path) -> None:
    """Wait until what is written behind is written."""
    sizes = [-1]
    while len(sizes) < 10 or len(set(sizes[-10:])) > 1:
        time.sleep(0.05)
        sizes.append(sum(file.stat().st_blocks for file in folder.rglob("*.kv")))


def wait_for_replicas(daemon: Any, count: int) -> None:
    deadline = time.monotonic() + 60
    while [one["state"] for one in daemon.readyz()[1]["replicas"]] != ["ready"] * count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_disk_is_found_after_a_restart_and_after_a_kill(
    start_daemon: Any, tmp_path: Path
) -> None:
    env = environment(tmp_path / "kv")
    daemon = start_daemon(NANO, env=env)
    text, num_tokens, cached = complete(daemon, PROMPT)
    assert cached == 0
    for other in OTHERS:  # they take the pool's pages, and the host tier's
        complete(daemon, other)
    settled(tmp_path / "kv")
    killed = daemon.kill_engine()
    deadline = time.monotonic() + 60
    while daemon.readyz()[0] != 200 or daemon.engine_pid in (None, killed):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    again, _, cached = complete(daemon, PROMPT)
    assert again == text
    assert cached > num_tokens / 2
    for other in OTHERS:
        complete(daemon, other)
    _is_in_use(start_daemon, env)
    assert daemon.stop() == 0
    daemon = start_daemon(NANO, env=env)
    again, _, cached = complete(daemon, PROMPT)
    assert again == text
    assert cached > num_tokens / 2
    assert tier_hits(daemon) == {"disk": cached}
    assert daemon.stop() == 0


def _is_in_use(start_daemon: Any, env: dict[str, str]) -> None:
    """A second daemon on the folder of the first says what keeps it."""
    second = start_daemon(NANO, env=env, wait=False)
    deadline = time.monotonic() + 60
    while not second.said("in use by another process"):
        assert time.monotonic() < deadline, second.log.read_text()
        time.sleep(0.05)
    second.process.kill()


def test_two_replicas_keep_their_pages_beside_each_other_and_find_them_again(
    start_daemon: Any, tmp_path: Path
) -> None:
    env = environment(
        tmp_path / "kv", GATEWAYD_ENGINE__REPLICAS="2", GATEWAYD_ROUTER__STRATEGY="prefix"
    )
    prompts = [f"# file {k}\n" + PROMPT for k in range(6)]
    daemon = start_daemon(NANO, env=env)
    wait_for_replicas(daemon, 2)
    texts = [complete(daemon, prompt)[0] for prompt in prompts]
    assert daemon.stop() == 0
    assert [path.name for path in sorted((tmp_path / "kv").iterdir())] == ["engine-0", "engine-1"]
    daemon = start_daemon(NANO, env=env)
    wait_for_replicas(daemon, 2)
    for prompt, text in zip(prompts, texts, strict=True):
        again, num_tokens, cached = complete(daemon, prompt)
        assert again == text
        assert cached > num_tokens / 2
    assert daemon.stop() == 0


def test_what_is_cached_is_written_at_the_end_and_lost_in_a_kill(
    start_daemon: Any, tmp_path: Path
) -> None:
    env = environment(tmp_path / "kv", GATEWAYD_ENGINE__KV_PAGES="400")
    daemon = start_daemon(NANO, env=env)
    text, num_tokens, cached = complete(daemon, PROMPT)
    assert cached == 0
    daemon.process.kill()  # nothing was evicted, so nothing is written
    daemon.process.wait()
    daemon = start_daemon(NANO, env=env)
    again, _, cached = complete(daemon, PROMPT)
    assert (again, cached) == (text, 0)
    assert daemon.stop() == 0
    daemon = start_daemon(NANO, env=env)
    again, _, cached = complete(daemon, PROMPT)
    assert again == text
    assert cached > num_tokens - 17
    assert tier_hits(daemon) == {"disk": cached}
    assert daemon.stop() == 0


def test_tiers_are_listed_and_their_settings_checked(tmp_path: Path) -> None:
    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gatewayd", *arguments],
            env={**os.environ, **environment(tmp_path, **env)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert run("config", "check").returncode == 0
    wrong = run("config", "check", GATEWAYD_KV_TIER__HOST__MEMORY="much")
    assert wrong.returncode == 78
    assert "kv_tier.host" in wrong.stderr + wrong.stdout
    shown = json.loads(run("plugin", "list", "--json").stdout)
    rows = shown if isinstance(shown, list) else shown["plugins"]
    states = {row["name"]: row["state"] for row in rows if row["kind"] == "kv_tier"}
    assert states == {"host": "enabled", "disk": "enabled"}


def test_models_of_one_daemon_have_folders_of_their_own_and_find_their_pages_again(
    start_daemon: Any, tmp_path: Path
) -> None:
    file = tmp_path / "g.toml"
    first = '[models.a]\npath = "embedded:nano"\n'
    file.write_text(first)
    env = environment(tmp_path / "kv", GATEWAYD_CONFIG=str(file))
    daemon = start_daemon(NANO, env=env)
    texts = {"a": complete(daemon, PROMPT, "a")[0]}
    assert daemon.stop() == 0
    more = ("org/b", "org_b")  # alike once slashes are replaced
    file.write_text(
        first + "".join(f'[models."{name}"]\npath = "embedded:nano-draft"\n' for name in more)
    )
    daemon = start_daemon(NANO, env=env)
    again, num_tokens, cached = complete(daemon, PROMPT, "a")
    # The cache of a daemon with one model is not lost when it gets others.
    assert again == texts["a"]
    assert cached > num_tokens / 2
    for name in more:
        texts[name], _, cached = complete(daemon, PROMPT, name)
        assert cached == 0
    assert not daemon.said("in use by another process")
    assert daemon.stop() == 0
    names = sorted(path.name for path in (tmp_path / "kv").iterdir())
    assert names[0] == "engine-0"
    assert [name[:-13] for name in names[1:]] == ["engine-0-org_b"] * 2
    daemon = start_daemon(NANO, env=env)
    for name, text in texts.items():
        again, num_tokens, cached = complete(daemon, PROMPT, name)
        assert again == text
        assert cached > num_tokens / 2
    assert daemon.stop() == 0
