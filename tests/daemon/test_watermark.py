"""Watermark: marked answers are detected by the daemon and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.admin.client import AdminError, call

NANO_DAEMON = ("-m", "gatewayd", "serve", "--port", "0")
SECRET = "a secret of sixteen and more"
CHAIN = '["penalties", "bias", "min_tokens", "watermark"]'
MARKING = {
    "GATEWAYD_LOGITS_PROCESSOR__STRATEGIES": CHAIN,
    "GATEWAYD_LOGITS_PROCESSOR__WATERMARK__SECRET": SECRET,
}


def detect(file: Path | None, text: str = "", *options: str, **env: str) -> Any:
    command = [sys.executable, "-m", "gatewayd", "watermark", "detect", str(file or "-"), "--json"]
    return subprocess.run(
        [*command, *options],
        env={**os.environ, **MARKING, **env},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_answer_is_marked_and_found(start_daemon: Any, tmp_path: Path) -> None:
    daemon = start_daemon(NANO_DAEMON, env=MARKING)
    body = {
        "model": "nano",
        "prompt": "import os\n\nclass Cache:\n",
        "max_tokens": 240,
        "ignore_eos": True,
        "return_token_ids": True,
        "seed": 1,
    }
    with httpx.Client(base_url=daemon.url, timeout=60) as http:
        choice = http.post("/v1/completions", json=body).json()["choices"][0]
        ids = {"tokens": choice["token_ids"]}
        by_ids = http.post("/v1/watermark/detect", json=ids).json()
        by_text = http.post("/v1/watermark/detect", json={"text": choice["text"]}).json()
        wish = {**body, "extra_args": {"watermark": False}}
        refused = http.post("/v1/completions", json=wish)
    assert by_ids["num_tokens"] == 240
    for found in (by_ids, by_text):
        assert found["z"] >= 4.0
        assert found["is_marked"] is True
    assert refused.status_code == 400
    assert "this server marks every answer" in refused.json()["error"]["message"]
    file = tmp_path / "answer.txt"
    file.write_text(choice["text"])
    for done in (detect(file), detect(None, choice["text"])):
        assert json.loads(done.stdout)["is_marked"] is True, done.stderr
    stranger = json.loads(detect(file, "", "--tenant", "stranger").stdout)
    assert stranger["z"] < 4.0
    assert detect(tmp_path / "none").returncode == 1


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"GATEWAYD_LOGITS_PROCESSOR__STRATEGIES": "[]"}, "has no watermark strategy"),
        ({"GATEWAYD_LOGITS_PROCESSOR__WATERMARK__SECRET": "hunter2"}, "shorter than 16"),
    ],
)
def test_without_a_usable_mark_the_command_says_so(env: dict[str, str], sentence: str) -> None:
    done = detect(None, "text", **env)
    assert done.returncode == 78
    assert sentence in done.stderr
    assert "hunter2" not in done.stderr


def test_a_bad_secret_stops_the_daemon_with_a_sentence(start_daemon: Any) -> None:
    env = {**MARKING, "GATEWAYD_LOGITS_PROCESSOR__WATERMARK__SECRET": "hunter2"}
    daemon = start_daemon(NANO_DAEMON, env=env, wait=False)
    assert daemon.process.wait(30) != 0
    assert daemon.said("shorter than 16 characters")
    assert not daemon.said("hunter2")


def test_the_detector_follows_the_chain_and_the_secret(start_daemon: Any, tmp_path: Path) -> None:
    socket = str(tmp_path / "admin.sock")
    daemon = start_daemon(NANO_DAEMON, env={"GATEWAYD_ADMIN__SOCKET": socket})

    def chain(*names: str, **watermark: Any) -> None:
        body = {"name": list(names), "settings": {"watermark": watermark} if watermark else {}}
        call(socket, "PUT", "/admin/strategies/logits_processor", body)

    def answer() -> list[int]:
        body = {"model": "nano", "prompt": "class Cache:\n", "max_tokens": 200, "seed": 1}
        asked = {**body, "ignore_eos": True, "return_token_ids": True}
        choice = http.post("/v1/completions", json=asked).json()["choices"][0]
        return list(choice["token_ids"])

    def verdict(ids: list[int]) -> Any:
        return http.post("/v1/watermark/detect", json={"tokens": ids})

    with httpx.Client(base_url=daemon.url, timeout=60) as http:
        plain = answer()
        assert verdict(plain).status_code == 404
        chain("bias", "watermark", secret=SECRET)
        first = answer()
        assert verdict(first).json()["is_marked"] is True
        assert verdict(plain).json()["is_marked"] is False
        chain("bias", "watermark", secret=SECRET[::-1])
        second = answer()
        assert verdict(second).json()["is_marked"] is True
        assert verdict(first).json()["is_marked"] is False
        with pytest.raises(AdminError, match="shorter than 16") as refused:
            chain("watermark", secret="hunter2")
        assert "hunter2" not in str(refused.value)
        assert verdict(second).json()["is_marked"] is True
        assert SECRET[::-1] not in json.dumps(call(socket, "GET", "/admin/strategies"))
        chain("bias")
        assert verdict(second).status_code == 404
        assert answer() == plain


@pytest.mark.parametrize("length", [240, pytest.param(1000, marks=pytest.mark.slow)])
def test_each_tenant_finds_its_own_mark_and_no_other(
    start_daemon: Any, tmp_path: Path, length: int
) -> None:
    """Two tenants and the operator, before and after a limit is put on the tenant of everybody."""
    socket = str(tmp_path / "admin.sock")
    env = {**MARKING, "GATEWAYD_ADMIN__SOCKET": socket, "GATEWAYD_API_KEY": "operator"}
    daemon = start_daemon(NANO_DAEMON, env=env)
    keys = {"operator": "operator"}
    for name in ("acme", "other"):
        call(socket, "POST", "/admin/tenants", {"tenant": name})
        keys[name] = call(socket, "POST", "/admin/keys", {"tenant": name})["secret"]
    scopes = ["infer:elsewhere"]
    keys["bound"] = call(socket, "POST", "/admin/keys", {"tenant": "acme", "scopes": scopes})[
        "secret"
    ]

    def ask(who: str, path: str, **body: Any) -> httpx.Response:
        return http.post(path, json=body, headers={"authorization": f"Bearer {keys[who]}"})

    def answer(who: str) -> list[int]:
        asked = {"max_tokens": length, "ignore_eos": True, "return_token_ids": True, "seed": 1}
        told = ask(who, "/v1/completions", model="nano", prompt="class Cache:\n", **asked).json()
        return list(told["choices"][0]["token_ids"])

    def finds(who: str, ids: list[int], **fields: Any) -> Any:
        return ask(who, "/v1/watermark/detect", tokens=ids, **fields).json()["is_marked"]

    with httpx.Client(base_url=daemon.url, timeout=60) as http:
        names = ("acme", "other", "operator")
        with ThreadPoolExecutor() as pool:
            texts = dict(zip(names, pool.map(answer, names), strict=True))
        for whose, ids in texts.items():
            for who in texts:
                assert finds(who, ids) is (who == whose), (who, whose)
        assert finds("operator", texts["acme"], tenant="acme") is True
        assert finds("acme", texts["acme"], tenant="acme") is True
        stranger = ask("other", "/v1/watermark/detect", tokens=[1], tenant="acme")
        assert (stranger.status_code, stranger.json()["error"]["param"]) == (403, "tenant")
        assert ask("bound", "/v1/watermark/detect", tokens=[1]).status_code == 403
        call(socket, "PATCH", "/admin/tenants/default", {"concurrency": 9})
        assert finds("operator", texts["operator"]) is True
        counted = answer("operator")
        assert finds("operator", counted) is True
        assert finds("other", counted) is False
        call(socket, "PATCH", "/admin/tenants/default", {"concurrency": None})
        assert finds("operator", counted) is True
