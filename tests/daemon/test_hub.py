"""Models of the Hub: a daemon fetches and serves them, from a server that speaks its protocol."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from gatewayd.text.text_model import TextModel
from gatewayd_engine.model import embedded
from tests.daemon.conftest import NANO_DAEMON, StartDaemon
from tests.engine.core.transformers_oracle import theirs
from tests.gatewayd.hub.fake_hub import FakeHub, FakeRepo
from tests.gatewayd.hub.models import gguf, single

NAME = "org/nano-draft"
NEW_TOKENS = 16
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub().running() as hub:
        files = embedded.folder("nano-draft").iterdir()
        hub.repos[NAME] = FakeRepo({file.name: file.read_bytes() for file in files})
        yield hub


@pytest.fixture
def env(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "GATEWAYD_MODEL__PATH": f"hf:{NAME}",
    }


@pytest.fixture
def gatewayd(env: dict[str, str]) -> Run:
    """Run a command to its end."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gatewayd", *arguments],
            env={**env, **more},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def incomplete(tmp_path: Path) -> list[Path]:
    return list(tmp_path.rglob("*.incomplete"))


def test_a_start_fetches_the_model_and_the_next_one_asks_nothing(
    hub: FakeHub, env: dict[str, str], start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(NANO_DAEMON, env=env)
    assert daemon.said("fetching org/nano-draft")
    assert daemon.said("verifying model.safetensors")
    (named,) = httpx.get(f"{daemon.url}/v1/models").json()["data"]
    assert named["id"] == NAME
    assert httpx.get(f"{daemon.url}/v1/models/{NAME}").json()["id"] == NAME
    prompt = "def quicksort("
    body = {"model": NAME, "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0}
    answer = httpx.post(
        f"{daemon.url}/v1/completions", json={**body, "ignore_eos": True}, timeout=60
    ).json()
    folder = embedded.folder("nano-draft")
    tokenizer = TextModel.from_folder(folder).tokenizer
    wanted = theirs(folder, tokenizer.encode(prompt), NEW_TOKENS)
    assert answer["choices"][0]["text"] == tokenizer.decode(wanted, skip_special=True)
    assert daemon.stop() == 0
    hub.requests.clear()
    again = start_daemon(NANO_DAEMON, env={**env, "HF_HUB_OFFLINE": "1"})
    assert not again.said("fetching")
    assert again.stop() == 0
    assert hub.requests == []


def test_contents_that_another_tool_stores_in_a_private_folder_are_served(
    env: dict[str, str], gatewayd: Run, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    assert gatewayd("model", "pull", NAME).returncode == 0
    private = tmp_path / "home" / "contents"
    private.mkdir(parents=True)
    private.parent.chmod(0o700)
    for blob in (tmp_path / "hf" / "hub" / "models--org--nano-draft" / "blobs").iterdir():
        content = private / hashlib.sha256(blob.read_bytes()).hexdigest()
        blob.replace(content)
        blob.symlink_to(content)
    daemon = start_daemon(NANO_DAEMON, env=env)
    grammar = {"structured_outputs": {"regex": "[a-c]{3}"}}
    body = {"model": NAME, "prompt": "a", "max_tokens": 8, **grammar}
    answer = httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=60)
    assert re.fullmatch("[a-c]{3}", answer.json()["choices"][0]["text"])
    assert daemon.stop() == 0
    assert not daemon.said("without a sandbox")
    # Verified where they are.
    assert gatewayd("model", "pull", NAME).returncode == 0
    assert all(path.is_symlink() for path in (tmp_path / "hf").rglob("blobs/*"))


def test_a_model_that_cannot_be_fetched_is_one_sentence(env: dict[str, str], gatewayd: Run) -> None:
    done = gatewayd("serve", "--port", "0", "--model", "hf:org/none")
    assert done.returncode == 1
    assert f"{env['HF_ENDPOINT']} has no model org/none" in done.stderr.splitlines()[-1]
    offline = gatewayd("serve", "--port", "0", HF_HUB_OFFLINE="1")
    assert offline.returncode == 1
    assert "HF_HUB_OFFLINE is set" in offline.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_fetches(
    hub: FakeHub,
    env: dict[str, str],
    start_daemon: StartDaemon,
    tmp_path: Path,
    number: int,
) -> None:
    hub.open.clear()
    daemon = start_daemon(NANO_DAEMON, env=env, wait=False)
    deadline = time.monotonic() + 60
    while not incomplete(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert daemon.stop(number) == 0
    assert daemon.said("stopped while fetching")
    assert incomplete(tmp_path) == []


def test_commands_pull_list_and_delete(hub: FakeHub, gatewayd: Run, env: dict[str, str]) -> None:
    hub.repos["org/other"] = gguf()
    done = gatewayd("model", "pull", NAME)
    assert done.returncode == 0, done.stderr
    assert "gatewayd serve --model hf:org/nano-draft" in done.stdout
    assert "model.safetensors" in done.stderr
    refused = gatewayd("model", "pull", "org/other")
    assert refused.returncode == 1
    assert "Q4_K_M, Q8_0" in refused.stderr
    lines = gatewayd("model", "pull", "org/other", "--include", "*Q4*", "--json").stdout
    assert json.loads(lines.splitlines()[-1])["stage"] == "done"
    listed = json.loads(gatewayd("model", "list", "--json").stdout)
    assert [row["name"] for row in listed["models"]] == ["org/nano-draft", "org/other:Q4_K_M"]
    assert "org/other:Q4_K_M" in gatewayd("model", "list").stdout
    # The configuration serves it.
    assert "is being served" in gatewayd("model", "delete", NAME).stderr
    assert gatewayd("model", "delete", "org/other:Q4_K_M").returncode == 0
    listed = json.loads(gatewayd("model", "list", "--json").stdout)
    assert [row["name"] for row in listed["models"]] == ["org/nano-draft"]


def test_a_disk_that_is_full_in_a_file_is_said(
    hub: FakeHub, env: dict[str, str], tmp_path: Path
) -> None:
    hub.repos["org/single"] = single()
    # Writes beyond eight kibibytes fail, as on a full disk.
    limited = f'ulimit -f 8; exec "{sys.executable}" -B -m gatewayd model pull org/single'
    done = subprocess.run(
        ["bash", "-c", limited], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert f"cannot read or write {tmp_path / 'hf' / 'hub'}" in done.stderr
    assert incomplete(tmp_path) == []


def test_a_pull_that_is_interrupted_leaves_no_part_of_a_file(
    hub: FakeHub, env: dict[str, str], tmp_path: Path
) -> None:
    hub.repos["org/single"] = single()
    hub.open.clear()
    command = [sys.executable, "-m", "gatewayd", "model", "pull", "org/single"]
    pulling = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    while not incomplete(tmp_path):
        assert pulling.poll() is None
        time.sleep(0.02)
    pulling.send_signal(signal.SIGTERM)
    assert "interrupted" in pulling.communicate(timeout=60)[1]
    assert pulling.returncode == 1
    assert incomplete(tmp_path) == []
