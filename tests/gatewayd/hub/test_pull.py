"""Pulls from a server that speaks the Hub's protocol: which files, from which commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants, scan_cache_dir

from gatewayd.hub import errors
from gatewayd.hub.errors import HubError
from gatewayd.hub.store import stored_path
from tests.gatewayd.hub.fake_hub import FakeHub, FakeRepo
from tests.gatewayd.hub.models import SMALL, content, gguf, sharded, single
from tests.gatewayd.hub.pulls import REPO, contents, pulled, refused


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


def test_a_repository_of_pickles_is_a_sentence(hub: FakeHub, store: Path) -> None:
    hub.repos[REPO] = FakeRepo({**SMALL, "pytorch_model.bin": b"pickle", "model.pt": b"pickle"})
    error = refused()
    assert error.code == errors.UNSERVABLE
    assert "model.pt, pytorch_model.bin" in str(error)
    assert "safetensors or GGUF" in str(error)
    assert hub.fetched() == []
