"""Confinement of a pull: what its process can no longer do, tried in the middle of a real one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from gatewayd.hub import pull_sandbox
from gatewayd.hub.store import repo_folder, stored_path
from gatewayd_hooks.helpers import children
from tests.engine.process.test_sandbox import has_landlock
from tests.gatewayd.hub.fake_hub import FakeHub
from tests.gatewayd.hub.models import single
from tests.gatewayd.hub.pulls import REPO, pulled

confined = pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")
HASH = "cd" * 32

RUN = """
import runpy, sys
sys.argv = ["gatewayd", "model", "pull", "--json", sys.argv.pop(1)]
runpy.run_module("gatewayd", run_name="__main__", alter_sys=True)
"""
HOSTILE = """
import certifi, json, os, signal, socket, ssl, sys
from pathlib import Path
from gatewayd.hub import pull
folder, linked, parent = Path(sys.argv.pop(1)), Path(sys.argv.pop(1)), int(sys.argv.pop(1))
store = Path(os.environ["HF_HUB_CACHE"])
def connects():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(str(folder / "admin.sock"))
def binds():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
TRIES = {
    "write": lambda: (folder / "secret").open("a").close(),
    "make": lambda: (folder / "made").mkdir() or (folder / "made").rmdir(),
    "rename": lambda: (folder / "secret").rename(folder / "secret"),
    "link": lambda: (folder / "link").symlink_to("secret") or (folder / "link").unlink(),
    "write to home": lambda: (Path.home() / ".bashrc").open("a").close(),
    "write through a link": lambda: (store / "out" / "secret").open("a").close(),
    "read": lambda: (folder / "secret").read_text(),
    "read in a linked folder": lambda: (linked / "secret").read_text(),
    "list": lambda: list(folder.iterdir()),
    "chmod": lambda: (folder / "secret").chmod(0o600),
    "administrate": connects,
    "administrate by a pair": lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].close(),
    "serve": binds,
    "environment": lambda: Path(f"/proc/{parent}/environ").read_bytes(),
    "signal": lambda: os.kill(parent, 0),
}
for kind in ("PACKET", "VSOCK", "ALG"):  # not every system has them
    family = getattr(socket, f"AF_{kind}")
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
    except OSError:
        continue
    TRIES[kind] = lambda family=family: socket.socket(family, socket.SOCK_DGRAM).close()
def anchors():
    system = ssl.create_default_context()
    system.load_verify_locations(capath=ssl.get_default_verify_paths().capath)
    system.load_verify_locations(certifi.where())
    found = [*Path("/etc/ssl/certs").glob("*.pem"), *Path("/etc/pki/tls/certs").glob("*.crt")]
    return [system.cert_store_stats(), {str(path): len(path.read_bytes()) for path in found}]
def tried():
    found = {}
    for name, attempt in TRIES.items():
        try:
            attempt()
        except PermissionError:
            found[name] = "refused"
        else:
            found[name] = "done"
    return found
before, real = [tried(), anchors()], pull.digest_of
def digest_of(path, like):
    names = [one[4][0] for one in socket.getaddrinfo("localhost", 80)]
    (store / "found").write_text(json.dumps([*before, tried(), anchors(), names]))
    return real(path, like)
pull.digest_of = digest_of
"""
LESS = """
from gatewayd_engine.process import sandbox
def none(*_, **__):
    raise sandbox.{error}("the kernel has no Landlock")
sandbox._restrict_files = none
"""


def run(hub: FakeHub, code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run ``gatewayd model pull`` after some code."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        children.python("-c", code + RUN, *argv, REPO),
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )


@confined
def test_a_hostile_pull_changes_the_store_alone_and_reads_nothing_of_its_user(
    hub: FakeHub, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO] = single()
    folder, home = tmp_path / "private", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    store.mkdir()
    (store / "out").symlink_to(folder)
    (folder / "secret").write_text("canary")
    # As the store of a hostile earlier pull has it: a folder that is named like a content.
    linked, snapshot = tmp_path / HASH, repo_folder(REPO) / "snapshots" / "1"
    linked.mkdir()
    (linked / "secret").write_text("canary")
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(linked)
    monkeypatch.setenv("HOME", str(home))
    with socket.socket(socket.AF_UNIX) as admin:
        admin.bind(str(folder / "admin.sock"))
        admin.listen()
        done = run(hub, HOSTILE, str(folder), str(linked), str(os.getpid()))
    assert done.returncode == 0, done.stderr
    before, anchors, after, kept, names = json.loads((store / "found").read_text())
    assert set(before.values()) == {"done"}
    assert after == dict.fromkeys(before, "refused")
    assert "127.0.0.1" in names
    assert kept == anchors
    assert anchors[0]["x509_ca"] > 50
    assert (stored_path(f"hf:{REPO}") / "model.safetensors").stat().st_size == 20_000


@confined
def test_contents_that_other_tools_store_elsewhere_are_verified_and_secrets_are_not_read(
    hub: FakeHub, store: Path, tmp_path: Path
) -> None:
    hub.repos[REPO] = single()
    pulled()
    elsewhere = tmp_path / "home"
    elsewhere.mkdir(mode=0o700)
    blob = (stored_path(f"hf:{REPO}") / "model.safetensors").resolve()
    for name, status in ((HASH, 0), ("id_rsa", 1)):
        target = elsewhere / name
        blob.resolve().replace(target)
        blob.unlink(missing_ok=True)
        blob.symlink_to(target)
        hub.requests.clear()
        done = run(hub, "import sys")
        assert done.returncode == status, done.stderr
        assert hub.fetched() == []
    assert "cannot read or write" in done.stdout
    assert target.stat().st_size == 20_000


def test_folders_of_private_keys_are_not_granted(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted: list[Path] = []

    def confine(paths: Iterable[str], **others: object) -> None:
        granted.extend(Path(path) for path in paths)

    monkeypatch.setattr(pull_sandbox, "confine", confine)
    assert pull_sandbox.confine_pull(REPO) == ""
    assert Path("/etc/ssl/certs") in granted
    for key in ("/etc/ssl/private/key.pem", "/etc/pki/tls/private/key.pem", "/etc/pki/nssdb/k"):
        assert not set(granted) & {Path(key), *Path(key).parents}


def test_a_token_is_read_where_huggingfaces_tools_store_it(
    hub: FakeHub, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.repos[REPO] = single()
    repo.gated = "hf_secret"
    for name, value in (("HF_TOKEN_PATH", "elsewhere"), ("HF_HOME", "token")):
        file = tmp_path / name / value
        file.parent.mkdir()
        file.write_text("hf_secret\n")
        monkeypatch.delenv("HF_TOKEN_PATH", raising=False)
        monkeypatch.setenv(name, str(file if name == "HF_TOKEN_PATH" else file.parent))
        done = run(hub, "import sys")
        assert done.returncode == 0, done.stdout
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "other"))


def test_where_the_system_lacks_a_mechanism_a_model_is_pulled_and_it_is_logged(
    hub: FakeHub, store: Path
) -> None:
    hub.repos[REPO] = single()
    done = run(hub, LESS.format(error="SandboxUnavailable"))
    assert done.returncode == 0
    assert "the pull can access what its user can: the kernel has no Landlock" in done.stderr
    assert stored_path(f"hf:{REPO}").is_dir()


def test_where_confinement_fails_nothing_is_asked(hub: FakeHub, store: Path) -> None:
    hub.repos[REPO] = single()
    done = run(hub, LESS.format(error="SandboxFailed"))
    assert done.returncode == 1
    failure = json.loads(done.stdout)
    assert failure["code"] == "pull_not_confined"
    assert "could not be confined: the kernel has no Landlock" in failure["error"]
    assert hub.requests == []
