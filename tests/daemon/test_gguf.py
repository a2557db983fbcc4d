"""GGUF files alone: a daemon serves them, with the tokens of transformers."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest
from safetensors.torch import save_file

from gatewayd.text.text_model import TextModel
from tests.daemon.conftest import NANO_DAEMON, StartDaemon
from tests.engine.core.small_model import small
from tests.engine.core.transformers_oracle import theirs
from tests.engine.gguf_files import convert
from tests.engine.gguf_tokenizers import byte_level

MESSAGES = [{"role": "user", "content": "What does sorted() return?"}]
NEW_TOKENS = 24


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, Path]:
    """A file, and a folder with the same numbers as safetensors."""
    source, folder = small(), tmp_path / "gguf"
    folder.mkdir()
    numbers = convert(
        *(source, folder, "llama", ("F32",)),
        **{"general.name": "org/Small Nano", **byte_level(source)},
    )
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (plain / name).symlink_to(source / name)
    save_file({name: t.contiguous() for name, t in numbers.items()}, plain / "model.safetensors")
    (tmp_path / "small.gguf").hardlink_to(folder / "model.gguf")
    return tmp_path / "small.gguf", plain


def test_a_file_alone_is_served(model: tuple[Path, Path], start_daemon: StartDaemon) -> None:
    file, plain = model
    cache = {"XDG_CACHE_HOME": str(file.parent / "cache"), "GATEWAYD_MODEL__PATH": str(file)}
    daemon = start_daemon(NANO_DAEMON, env={**os.environ, **cache})
    text = TextModel.from_folder(plain)
    prompt = text.render_chat(MESSAGES, limit=1000).encode()
    (named,) = httpx.get(f"{daemon.url}/v1/models").json()["data"]
    assert named["id"] == "Small Nano"
    body = {"model": named["id"], "messages": MESSAGES, "max_tokens": NEW_TOKENS}
    answer = httpx.post(
        f"{daemon.url}/v1/chat/completions",
        json={**body, "temperature": 0, "ignore_eos": True},
        timeout=60,
    ).json()
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    wanted = theirs(plain, prompt, NEW_TOKENS)
    assert answer["choices"][0]["message"]["content"] == text.tokenizer.decode(
        wanted, skip_special=True
    )
    assert daemon.stop() == 0
