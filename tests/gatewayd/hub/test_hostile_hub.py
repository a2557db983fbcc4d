"""A Hub, or a mirror, whose answers name other places than the file that was asked for."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gatewayd.hub import errors
from gatewayd.hub.client import endpoint
from gatewayd.hub.store import stored_path
from tests.gatewayd.hub.fake_hub import FakeHub
from tests.gatewayd.hub.models import content, single
from tests.gatewayd.hub.pulls import REPO, contents, pulled, refused

OUTSIDE = "../../../outside.json"


@pytest.mark.parametrize("name", ["ETag", "X-Linked-Etag", "X-Repo-Commit"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_headers_of_an_answer_name_no_path(hub: FakeHub, store: Path, name: str, file: str) -> None:
    repo = hub.repos[REPO] = single()
    repo.headers[file] = {name: f'"{OUTSIDE}"' if "tag" in name.lower() else OUTSIDE}
    pulled()
    folder = stored_path(f"hf:{REPO}")
    assert (folder / file).read_bytes() == repo.files[file]
    for path in folder.iterdir():
        assert path.resolve().parent == store.resolve() / "models--org--small" / "blobs"
    assert not [path for path in store.parent.rglob("*") if "outside" in path.name]


def test_a_wrong_file_removes_no_content_of_another_model(hub: FakeHub, store: Path) -> None:
    hub.repos = {"good/model": single(), "evil/model": single()}
    pulled("good/model")
    before = contents(stored_path("hf:good/model"))
    digest = hashlib.sha256(hub.repos["good/model"].files["model.safetensors"]).hexdigest()
    evil = hub.repos["evil/model"]
    evil.change({"model.safetensors": content("evil")})
    evil.served["model.safetensors"] = content("wrong")
    evil.headers["model.safetensors"] = {
        "X-Linked-Etag": f'"../../models--good--model/blobs/{digest}"'
    }
    assert refused("evil/model").code == errors.DAMAGED
    assert contents(stored_path("hf:good/model")) == before


def test_xet_is_not_spoken(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = single()
    repo.headers["model.safetensors"] = {
        "X-Xet-Hash": "a" * 64,
        "X-Xet-Refresh-Route": f"{hub.cdn}/xet",
        "X-Linked-Size": "80000000",
    }
    pulled()
    assert not [path for _, path, _ in hub.requests if path.startswith("/xet")]
    assert not (store / "blobs").exists()
    blob = (stored_path(f"hf:{REPO}") / "model.safetensors").resolve()
    assert blob.stat().st_size == 20_000


def test_the_token_follows_no_redirect_to_another_host(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.repos[REPO] = single()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    listing = f"/api/models/{REPO}/revision/main"
    config = f"/{REPO}/resolve/{repo.commit}/config.json"
    hub.moved[listing] = f"{hub.cdn}/moved{listing}"
    hub.moved[config] = f"{hub.cdn}/cdn/{REPO}/config.json"
    # There it is found in the end.
    hub.moved[f"/moved{listing}"] = f"{hub.cdn}/api/models/{REPO}/revision/{repo.commit}"
    pulled()
    assert stored_path(f"hf:{REPO}").is_dir()
    told = {headers["host"]: set[str]() for _, _, headers in hub.requests}
    for _, _, headers in hub.requests:
        told[headers["host"]].add(headers.get("authorization", ""))
    assert told == {
        hub.url.removeprefix("http://"): {"Bearer hf_secret"},
        hub.cdn.removeprefix("http://"): {""},
    }


def test_a_password_in_the_address_is_in_no_message(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://me:pass@127.0.0.1:9")
    monkeypatch.setattr("gatewayd.hub.client._WAIT_SECONDS", 0.0)
    assert endpoint() == "http://127.0.0.1:9"
    error = str(refused())
    assert "http://127.0.0.1:9" in error
    assert "pass" not in error


def test_a_repository_of_many_small_files_is_refused(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = single()
    repo.files |= {f"{at}.json": b"{}" for at in range(600)}
    error = refused()
    assert (error.code, "604 files" in str(error)) == (errors.UNSERVABLE, True)
    assert hub.fetched() == []


def test_space_is_asked_for_before_each_file(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO] = single()
    free = iter([1 << 40, 1 << 40])
    # Another process fills the disk after the first file.
    monkeypatch.setattr("gatewayd.hub.pull.free_bytes", lambda: next(free, 0))
    assert refused().code == errors.NO_SPACE
    assert hub.fetched() == ["model.safetensors"]
