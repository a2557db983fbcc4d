"""Pulls from a Hub that is busy, broken or hostile, and into a store with damaged files."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from gatewayd.hub import errors
from gatewayd.hub.errors import HubError
from gatewayd.hub.store import stored_path
from tests.gatewayd.hub.fake_hub import FakeHub
from tests.gatewayd.hub.models import SMALL, content, sharded, single
from tests.gatewayd.hub.pulls import REPO, contents, pulled, refused


def test_a_cut_connection_is_resumed(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = single()
    # More often than a connection may break without any bytes in between.
    hub.cuts["model.safetensors"] = [9500, 100, 100, 100, 100]
    pulled()
    ranges = [headers.get("range") for _, path, headers in hub.requests if path.startswith("/cdn/")]
    assert {"bytes=9500-", "bytes=9900-"} <= {*ranges}
    assert (
        contents(stored_path(f"hf:{REPO}"))["model.safetensors"]
        == (repo.files["model.safetensors"])
    )


@pytest.mark.parametrize("path", ["/api/models/", f"/{REPO}/resolve/", "/cdn/"])
def test_a_busy_server_is_asked_again_when_it_says(hub: FakeHub, store: Path, path: str) -> None:
    hub.repos[REPO] = single()
    hub.busy[path] = ["0"]
    pulled()
    assert stored_path(f"hf:{REPO}").is_dir()


def test_a_server_that_stays_busy_is_an_error_with_its_time(hub: FakeHub, store: Path) -> None:
    hub.repos[REPO] = single()
    hub.busy["/api/"] = ["3600"]
    error = refused()
    assert error.code == errors.UNREACHABLE
    assert "3600" in str(error)


def test_a_wrong_file_is_removed_and_never_served(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = single()
    wrong = content("other")
    repo.served["model.safetensors"] = wrong
    error = refused()
    assert error.code == errors.DAMAGED
    assert "model.safetensors" in str(error)
    assert wrong not in contents(store).values()
    with pytest.raises(HubError):
        stored_path(f"hf:{REPO}")
    repo.served.clear()
    pulled()
    assert stored_path(f"hf:{REPO}").is_dir()


def test_a_file_without_an_end_is_cut_at_its_listed_size(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = single()
    repo.served["model.safetensors"] = content("weights", 200_000)
    error = refused()
    assert error.code == errors.DAMAGED
    assert "more than the 20000 bytes" in str(error)
    assert not list(store.glob("*/blobs/*"))


def test_a_file_whose_verification_is_interrupted_does_not_stay(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO] = single()

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gatewayd.hub.pull.digest_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pulled()
    assert not list(store.glob("*/blobs/*"))
    pulled()
    monkeypatch.setattr("gatewayd.hub.pull.digest_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pulled()
    # It was verified when it came.
    assert stored_path(f"hf:{REPO}").is_dir()


def test_a_small_wrong_file_is_noticed_too(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = single()
    repo.served["config.json"] = b"x" * len(SMALL["config.json"])
    assert refused().code == errors.DAMAGED


def test_a_file_that_was_damaged_on_the_disk_is_fetched_again(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = single()
    pulled()
    good = repo.files["model.safetensors"]
    blob = store / "models--org--small" / "blobs" / hashlib.sha256(good).hexdigest()
    blob.write_bytes(content("damaged"))
    pulled()
    assert (stored_path(f"hf:{REPO}") / "model.safetensors").read_bytes() == good


def test_a_repository_and_a_revision_that_are_gone(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = single()
    assert refused("org/other").code == errors.NOT_FOUND
    gone = refused(f"{REPO}@v9")
    assert (gone.code, "v9" in str(gone)) == (errors.NO_REVISION, True)
    repo.revisions["v1"] = "a" * 40
    repo.gone.add("a" * 40)
    assert refused(f"{REPO}@v1").code == errors.NO_REVISION
    assert contents(store) == {}


def test_a_gated_repository_needs_the_token(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO] = single()
    hub.repos[REPO].gated = "hf_secret"
    error = refused()
    assert (error.code, "HF_TOKEN" in str(error)) == (errors.NO_ACCESS, True)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.requests.clear()
    pulled()
    assert stored_path(f"hf:{REPO}").is_dir()
    for _, path, headers in hub.requests:
        # Large files are on another host, which is not told.
        told = "" if path.startswith("/cdn/") else "Bearer hf_secret"
        assert headers.get("authorization", "") == told


def test_space_is_asked_for_before_the_first_byte(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = single()
    repo.listed_sizes["model.safetensors"] = 1 << 60
    error = refused()
    assert error.code == errors.NO_SPACE
    assert str(1 << 60)[:6] in str(error)
    assert "are free" in str(error)
    assert hub.fetched() == []


def test_an_index_is_not_read_without_a_limit(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = sharded()
    repo.listed_sizes["model.safetensors.index.json"] = 1 << 30
    error = refused()
    assert (error.code, "index.json has more than" in str(error)) == (errors.UNSERVABLE, True)
    assert hub.fetched() == []


def test_parts_of_killed_downloads_are_removed(hub: FakeHub, store: Path) -> None:
    hub.repos[REPO] = single()
    blobs = store / "models--org--small" / "blobs"
    blobs.mkdir(parents=True)
    for name, age in (("a.1.incomplete", 7200), ("b.2.incomplete", 60)):
        (blobs / name).write_bytes(b"part")
        os.utime(blobs / name, (time.time() - age,) * 2)
    pulled()
    assert [path.name for path in blobs.glob("*.incomplete")] == ["b.2.incomplete"]


def test_a_planted_link_is_replaced_and_its_target_left_alone(
    hub: FakeHub, store: Path, tmp_path: Path
) -> None:
    repo = hub.repos[REPO] = single()
    outside = tmp_path / "outside.json"
    outside.write_bytes(b"{}")
    folder = store / "models--org--small" / "snapshots" / repo.commit
    folder.mkdir(parents=True)
    (folder / "config.json").symlink_to(outside)
    pulled()
    assert (folder / "config.json").read_bytes() == SMALL["config.json"]
    assert outside.read_bytes() == b"{}"


@pytest.mark.parametrize(
    "name",
    [
        *("../outside.json", "/etc/outside.json", "a/../../outside.json", "a//b.json"),
        *("a\\..\\b.json", "a\x1b[2J.json", "."),
    ],
)
def test_a_listing_with_hostile_names_is_refused(hub: FakeHub, store: Path, name: str) -> None:
    hub.repos[REPO] = single()
    hub.repos[REPO].files[name] = b"{}"
    error = refused()
    assert error.code == errors.DAMAGED
    assert "\x1b" not in str(error)
    assert hub.fetched() == []
    assert not [path for path in store.parent.rglob("*") if "outside" in path.name]
