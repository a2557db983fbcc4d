"""CORS: who may call, who may read, and closed by default."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gatewayd.config.tables import ServerTable
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import running

KEY = "a-long-enough-key"
PAGE = "https://chat.example.com"
CHAT = "/v1/chat/completions"
ASKED = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}
BODY = {"model": "nano", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


async def test_a_page_that_may_call_is_told_so_without_a_key(text: TextModel) -> None:
    async with running(text, FakeFleet(), api_key=KEY, allowed_origins=(PAGE,)) as gateway:
        answer = await gateway.http.options(CHAT, headers=ASKED)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"]
    assert all(name in allowed for name in ("authorization", "x-stainless-lang"))


async def test_it_reads_answers_streams_and_refusals(text: TextModel) -> None:
    fleet = FakeFleet(says([300, 301]))
    async with running(text, fleet, api_key=KEY, allowed_origins=(PAGE,)) as gateway:
        for key, stream, status in ((KEY, False, 200), (KEY, True, 200), ("wrong", False, 401)):
            answer = await gateway.http.post(
                CHAT,
                json={**BODY, "stream": stream},
                headers={"origin": PAGE, "authorization": f"Bearer {key}"},
            )
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert "x-request-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origins", [(), ("https://other.example.com",)])
async def test_another_page_is_told_nothing(text: TextModel, origins: tuple[str, ...]) -> None:
    async with running(text, FakeFleet(), api_key=KEY, allowed_origins=origins) as gateway:
        asked = await gateway.http.options(CHAT, headers=ASKED)
        answer = await gateway.http.get("/livez", headers={"origin": PAGE})
    assert asked.status_code >= 400
    assert "access-control-allow-origin" not in {**asked.headers, **answer.headers}


@pytest.mark.parametrize("origin", ["chat.example.com", "https://a.b/", "https://a.b/path", ""])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValidationError):
        ServerTable(allowed_origins=[origin])


def test_every_page_may_call_only_with_a_key() -> None:
    with pytest.raises(ValidationError, match="api_key"):
        ServerTable(allowed_origins=["*"])
    ServerTable(allowed_origins=["*"], api_key=KEY)  # type: ignore[arg-type]
