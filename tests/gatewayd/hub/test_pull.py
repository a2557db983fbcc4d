"""Pulls from a server that speaks the Hub's protocol, and its faults."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, scan_cache_dir
from huggingface_hub.utils._xet_progress_reporting import XetDownloadProgressReporter

from gatewayd.hub import errors
from gatewayd.hub.client import progress_class
from gatewayd.hub.errors import HubError
from gatewayd.hub.pull import pull
from gatewayd.hub.pull_events import PullEvent
from gatewayd.hub.reference import parse_reference
from gatewayd.hub.store import stored_path
from tests.gatewayd.hub.fake_hub import FakeHub, FakeRepo
from tests.gatewayd.hub.models import SMALL, content, gguf, sharded, single

REPO = "org/small"


def pulled(name: str = REPO, *patterns: str) -> list[PullEvent]:
    events: list[PullEvent] = []
    pull(parse_reference(name), patterns, report=events.append)
    return events


def refused(name: str = REPO, *patterns: str) -> HubError:
    with pytest.raises(HubError) as caught:
        pulled(name, *patterns)
    return caught.value


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_model_is_served_from_huggingfaces_cache(hub: FakeHub, store: Path) -> None:
    repo = hub.repos[REPO] = single()
    events = pulled()
    folder = stored_path(f"hf:{REPO}")
    # The library itself finds it there, under the revision that was asked for.
    [found] = scan_cache_dir(store).repos
    assert (found.repo_id, found.refs["main"].snapshot_path) == (REPO, folder)
    wanted = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
    assert contents(folder) == {name: repo.files[name] for name in (*wanted, "chat_template.jinja")}
    assert [events[0].stage, events[-1].stage] == ["listing", "done"]
    weights = [event for event in events if event.file == "model.safetensors"]
    assert [weights[-1].stage, weights[-2].completed, weights[-1].total] == (
        ["verifying", 20_000, 20_000]
    )
    # A folder that has it is complete.
    assert hub.fetched()[-1] == "config.json"


def test_code_and_pickles_are_never_fetched(hub: FakeHub, store: Path) -> None:
    hub.repos[REPO] = single()
    pulled()
    assert not any(name.endswith((".py", ".bin", ".md")) for name in hub.fetched())
    error = refused(REPO, "*.py")
    assert error.code == errors.NO_CHOICE
    assert "model.safetensors" in str(error)


def test_only_the_shards_of_the_index_are_fetched(hub: FakeHub, store: Path) -> None:
    hub.repos[REPO] = sharded()
    pulled()
    names = sorted(contents(stored_path(f"hf:{REPO}")))
    assert [name for name in names if name.endswith(".safetensors")] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_one_of_several_quantizations_must_be_chosen(hub: FakeHub, store: Path) -> None:
    hub.repos[REPO] = gguf()
    error = refused()
    assert error.code == errors.NO_CHOICE
    assert "Q4_K_M, Q8_0" in str(error)
    assert hub.fetched() == []
    pulled(f"{REPO}:q8_0")
    assert stored_path(f"hf:{REPO}:Q8_0").name == "Small-q8_0.gguf"
    pulled(REPO, "*Q4_K_M*")
    assert stored_path(f"hf:{REPO}:Small-Q4_K_M.gguf").name == "Small-Q4_K_M.gguf"
    with pytest.raises(HubError, match="several GGUF models") as caught:
        stored_path(f"hf:{REPO}")
    # Not that it is missing, which a start would fetch.
    assert caught.value.code == errors.NO_CHOICE


def test_safetensors_take_precedence_unless_a_gguf_is_named(hub: FakeHub, store: Path) -> None:
    repo = single()
    repo.change({"small-Q8_0.gguf": content("gguf")})
    hub.repos[REPO] = repo
    pulled()
    assert "small-Q8_0.gguf" not in hub.fetched()
    pulled(REPO, "*.gguf")
    assert stored_path(f"hf:{REPO}:Q8_0").name == "small-Q8_0.gguf"
    assert stored_path(f"hf:{REPO}").is_dir()


def test_a_cut_connection_is_resumed(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.repos[REPO] = single()
    # The library writes, and resumes after, pieces of this size.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cuts["model.safetensors"] = [9500]
    pulled()
    ranges = [headers.get("range") for _, path, headers in hub.requests if path.startswith("/cdn/")]
    assert "bytes=9000-" in ranges
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


def test_a_file_without_an_end_is_cut_at_its_listed_size(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.repos[REPO] = single()
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
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


def test_nothing_is_fetched_twice(hub: FakeHub, store: Path) -> None:
    hub.repos[REPO] = single()
    pulled()
    hub.requests.clear()
    events = pulled()
    assert hub.fetched() == []
    assert {event.stage for event in events} == {"listing", "fetching", "verifying", "done"}


def test_a_new_commit_replaces_the_old_one_only_when_it_is_complete(
    hub: FakeHub, store: Path
) -> None:
    repo = hub.repos[REPO] = single()
    pulled()
    before = stored_path(f"hf:{REPO}")
    repo.change({"model.safetensors": content("better")})
    repo.served["model.safetensors"] = content("wrong")
    refused()
    assert stored_path(f"hf:{REPO}") == before
    repo.served.clear()
    pulled()
    after = stored_path(f"hf:{REPO}")
    assert after.name == repo.commit != before.name


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


def test_names_of_files_that_are_not_fetched_may_have_any_characters(
    hub: FakeHub, store: Path
) -> None:
    hub.repos[REPO] = single()
    hub.repos[REPO].files["pictures/\u200d\\.png"] = b"picture"
    pulled()
    assert stored_path(f"hf:{REPO}").is_dir()


def test_offline_what_is_stored_is_there_and_nothing_is_asked(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO] = single()
    pulled()
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert [event.stage for event in pulled()] == ["listing", "done"]
    error = refused("org/other")
    assert error.code == errors.OFFLINE
    assert "HF_HUB_OFFLINE" in str(error)
    assert hub.requests == []


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


def test_a_repository_of_pickles_is_a_sentence(hub: FakeHub, store: Path) -> None:
    hub.repos[REPO] = FakeRepo({**SMALL, "pytorch_model.bin": b"pickle", "model.pt": b"pickle"})
    error = refused()
    assert error.code == errors.UNSERVABLE
    assert "model.pt, pytorch_model.bin" in str(error)
    assert "safetensors or GGUF" in str(error)
    assert hub.fetched() == []


def test_bytes_of_the_xet_protocol_are_counted_once() -> None:
    """As the library reports them: bytes of the file, and fewer on the wire."""
    counts: list[int] = []
    with XetDownloadProgressReporter(
        reconstruction_desc="file",
        total=100,
        log_level=logging.ERROR,
        tqdm_class=progress_class(counts.append),
    ) as reporter:
        for done, on_wire in ((0, 10), (40, 30), (100, 60)):
            report = SimpleNamespace(
                total_bytes_completed=done,
                total_transfer_bytes_completed=on_wire,
                total_bytes_completion_rate=1.0,
                total_transfer_bytes_completion_rate=1.0,
                total_bytes=100,
            )
            reporter.update_progress(report)
    assert counts == [40, 100]
