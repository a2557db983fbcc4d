"""A checkpoint with a tekken.json and no tokenizer.json: a daemon serves it, guides too."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import httpx

from tests.daemon.conftest import NANO_DAEMON, StartDaemon
from tests.engine.core.small_model import small
from tests.engine.core.transformers_oracle import theirs
from tests.engine.tokenizer_files import NUM_SPECIAL, naive_tekken, tekken_of

PROMPT = "def sorted(values): return"
NEW_TOKENS = 16


def test_a_checkpoint_with_mistrals_tokenizer_is_served(
    tmp_path: Path, start_daemon: StartDaemon
) -> None:
    (folder := tmp_path / "Small Tekken").mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / name).symlink_to(small() / name)
    file = tekken_of(small())
    (folder / "tekken.json").write_text(json.dumps(file))
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "GATEWAYD_MODEL__PATH": str(folder)}
    daemon = start_daemon(NANO_DAEMON, env={**os.environ, **cache})
    (named,) = httpx.get(f"{daemon.url}/v1/models").json()["data"]
    assert named["id"] == "Small Tekken"
    body = {"model": named["id"], "prompt": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0}
    url = f"{daemon.url}/v1/completions"
    answer = httpx.post(url, json={**body, "ignore_eos": True}, timeout=60).json()
    prompt = [1, *naive_tekken(PROMPT, file)]
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    tokens = [base64.b64decode(entry["token_bytes"]) for entry in file["vocab"]]
    wanted = [one - NUM_SPECIAL for one in theirs(folder, prompt, NEW_TOKENS)]
    made = b"".join(tokens[one] for one in wanted if 0 <= one < len(tokens))
    assert answer["choices"][0]["text"] == made.decode("utf-8", "replace")
    guided = {"guided_regex": "[0-9]{3}", "max_tokens": 8}
    answer = httpx.post(url, json={**body, **guided}, timeout=60).json()
    assert answer["choices"][0]["text"].isdecimal()
    assert daemon.stop() == 0
