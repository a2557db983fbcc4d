"""Pulls and deletes in several processes, and their ends at any time."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gatewayd.hub import errors
from gatewayd.hub.errors import HubError
from gatewayd.hub.reference import parse_reference
from gatewayd.hub.store import stored_path
from gatewayd.hub.store_locks import changing
from gatewayd.hub.stored_models import delete_stored, list_stored
from tests.gatewayd.gateway import until
from tests.gatewayd.hub.fake_hub import FakeHub
from tests.gatewayd.hub.models import content, gguf, single
from tests.gatewayd.hub.pulls import REPO, pulled

# A pull that does something when it verifies a file of weights.
PULL = """
import os, signal, sys, time
from gatewayd.hub import pull
from gatewayd.hub.reference import parse_reference
signal.signal(signal.SIGTERM, signal.default_int_handler)
real = pull.digest_of
def digest_of(path, like):
    if os.path.getsize(path) == 20_000:
        {action}
    return real(path, like)
pull.digest_of = digest_of
pull.pull(parse_reference(sys.argv[1]), report=lambda _: None)
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
STAYING = "print('verifying', flush=True); time.sleep(60)"


def started(hub: FakeHub, name: str, action: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PULL.replace("{action}", action), name],
        env={**os.environ, "HF_ENDPOINT": hub.url, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.parametrize("is_branch", [True, False])
def test_what_a_killed_pull_has_not_verified_is_not_served(
    hub: FakeHub, store: Path, is_branch: bool
) -> None:
    repo = hub.repos[REPO] = gguf()
    pulled(f"{REPO}:Q4_K_M")
    repo.served["Small-q8_0.gguf"] = content("wrong")
    name = f"{REPO}:Q8_0" if is_branch else f"{REPO}@{repo.commit}:Q8_0"
    with started(hub, name, KILLED) as pulling:
        assert pulling.wait(60) == -signal.SIGKILL
    with pytest.raises(HubError):
        stored_path(f"hf:{name}")
    assert [str(entry.reference) for entry in list_stored()] == [f"{REPO}:Q4_K_M"]


def test_contents_are_on_the_disk_before_the_branch_refers_to_them(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO] = single()
    steps: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        steps.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_sync(descriptor)

    def replace(path: Path, target: Path) -> Path:
        steps.append("rename to " + target.name)
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    pulled()
    commit = stored_path(f"hf:{REPO}").name
    ref = steps.index("rename to main")
    for folder in (commit, "blobs", "snapshots", "models--org--small", "store"):
        assert f"sync {folder}" in steps[:ref]
    files = [
        at for at, step in enumerate(steps[:ref]) if len(step) in (50, 74) and "rename" in step
    ]
    contents = [at for at in files if commit not in steps[at]]
    assert len(contents) == 5
    for at in contents:
        assert steps[at - 1].startswith(f"sync {steps[at].removeprefix('rename to ')}.")
    assert steps[ref - 1].startswith("sync .made.")
    assert steps[ref + 1] == "sync refs"


def test_a_pull_that_is_stopped_removes_nothing_that_another_completes(
    hub: FakeHub, store: Path
) -> None:
    repo = hub.repos[REPO] = single()
    repo.revisions["v1"] = repo.commit
    first = started(hub, f"{REPO}@v1", STAYING)
    assert first.stdout is not None
    assert first.stdout.readline() == "verifying\n"
    second = threading.Thread(target=pulled)
    second.start()
    second.join(1.0)
    assert second.is_alive()  # it waits for the first
    assert hub.fetched() == ["model.safetensors"]
    first.terminate()
    first.communicate(timeout=60)
    second.join(60)
    assert stored_path(f"hf:{REPO}").is_dir()
    assert not list(store.rglob("*.incomplete"))


def test_what_is_being_pulled_by_another_process_is_not_deleted(hub: FakeHub, store: Path) -> None:
    hub.repos[REPO] = gguf()
    pulled(f"{REPO}:Q4_K_M")
    pulling = started(hub, f"{REPO}:Q8_0", STAYING)
    assert pulling.stdout is not None
    pulling.stdout.readline()
    with pytest.raises(HubError, match="is being pulled or deleted") as caught:
        delete_stored(parse_reference(f"{REPO}:Q4_K_M"))
    assert caught.value.code == errors.IN_USE
    pulling.terminate()
    pulling.communicate(timeout=60)
    delete_stored(parse_reference(f"{REPO}:Q4_K_M"))


async def test_a_pull_waits_for_a_delete(hub: FakeHub, store: Path) -> None:
    hub.repos[REPO] = gguf()
    with changing(REPO, wait=False):
        pulling = threading.Thread(target=pulled, args=(f"{REPO}:Q8_0",))
        pulling.start()
        await until(lambda: bool(hub.requests))
        pulling.join(0.2)
        assert pulling.is_alive()
        assert hub.fetched() == []
    pulling.join(60)
    assert stored_path(f"hf:{REPO}:Q8_0").is_file()


def test_what_a_daemon_serves_is_not_deleted_by_a_command(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = single()
    pulled()
    served = stored_path(f"hf:{REPO}")
    repo.change({"model.safetensors": content("new")})
    pulled()
    code = (
        "import sys; from pathlib import Path; from gatewayd.hub.local_models import LocalModels;"
        " models = LocalModels([Path(sys.argv[1])]); print('serving', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(served)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        # It was pulled by a name that means another commit now.
        with pytest.raises(HubError, match="is being served"):
            delete_stored(parse_reference(f"{REPO}@{served.name}"))
        assert (served / "model.safetensors").is_file()
        delete_stored(parse_reference(REPO))
        daemon.communicate("\n", timeout=60)
    delete_stored(parse_reference(f"{REPO}@{served.name}"))
    assert list_stored() == []


def test_models_are_listed_while_others_are_deleted(store: Path) -> None:
    commit = "a" * 40
    for at in range(60):
        repo = store / f"models--o--m{at}"
        (repo / "blobs").mkdir(parents=True)
        (repo / "snapshots" / commit).mkdir(parents=True)
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            (repo / "blobs" / name).write_bytes(b"{}")
            (repo / "snapshots" / commit / name).symlink_to(repo / "blobs" / name)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(commit)

    def delete() -> None:
        for at in range(60):
            delete_stored(parse_reference(f"o/m{at}"))

    deleting = threading.Thread(target=delete)
    deleting.start()
    while deleting.is_alive():
        list_stored()
    assert list_stored() == []


def test_a_lock_ends_with_its_process(store: Path) -> None:
    with changing(REPO, wait=False):
        pass
    (file,) = store.glob(".locks/*/gatewayd.lock")
    with file.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(HubError), changing(REPO, wait=False):
            raise AssertionError
