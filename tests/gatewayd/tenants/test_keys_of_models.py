"""Keys for some models of a catalogue: which names they use, and learn of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import HIDDEN_SIZE, FakeFleet, Job, model_info, says
from tests.gatewayd.tenants.tenant_gateway import town

HI = [{"role": "user", "content": "hi"}]
OPTIONAL: dict[str, dict[str, object]] = {
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [300]},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/rerank": {"query": "hi", "documents": ["a"]},
}
"""Bodies of the paths on which ``model`` may be omitted."""
BODIES: dict[str, dict[str, object]] = {**OPTIONAL, "/v1/chat/completions": {"messages": HI}}


async def pools(job: Job) -> None:
    """Answer a prompt with a vector."""
    job.compute()
    for sink in job.live():
        sink.pooled(len(job.request.prompt), np.ones(HIDDEN_SIZE, np.float32).tobytes())
        sink.tokens([300], None)
        sink.finished("length", None)


@pytest.mark.parametrize("path", OPTIONAL)
async def test_a_request_without_a_model_goes_to_the_first_that_its_key_may_use(
    text: TextModel, tmp_path: Path, path: str
) -> None:
    first, code = model_info(100), model_info(200)
    others = {
        ("code", "coder"): FakeFleet(pools, code),
        ("third",): FakeFleet(model=model_info(300)),
    }
    async with town(text, tmp_path, pools, further=others) as here:
        here.gateway.fleet.model = first
        await here.tenant("a")
        answered = []
        for scopes in (["infer"], ["infer:gpt-test"], ["infer:third", "infer:coder"]):
            key = await here.key("a", scopes=scopes)
            answer = await here.post(path, key, OPTIONAL[path])
            assert answer.status_code == 200, answer.text
            answered.append(answer.json())
        none = await here.key("a", scopes=["infer:elsewhere", "files"])
        assert (await here.post(path, none, OPTIONAL[path])).status_code == 403
    if path == "/v1/rerank":
        assert [one["model"] for one in answered] == ["nano", "gpt-test", "coder"]
    if path == "/tokenize":
        assert [one["max_model_len"] for one in answered] == [100, 100, 200]


@pytest.mark.parametrize("path", BODIES)
async def test_an_unknown_model_lists_the_names_that_the_key_may_use(
    text: TextModel, tmp_path: Path, path: str
) -> None:
    others = {("secret-project",): FakeFleet(), ("code",): FakeFleet()}
    async with town(text, tmp_path, says([300]), further=others) as here:
        await here.tenant("a")
        body = {**BODIES[path], "model": "cod"}
        some = await here.post(path, await here.key("a", scopes=["infer:code"]), body)
        every = await here.post(path, await here.key("a"), body)
    assert (some.status_code, every.status_code) == (404, 404)
    assert some.json()["error"]["message"].endswith("does not exist; served: code")
    assert every.json()["error"]["message"].endswith("nano, gpt-test, secret-project, code")
