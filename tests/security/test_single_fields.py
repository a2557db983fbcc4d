"""Single request fields: none ends the engine for everybody.

Each is refused before an engine hears of it, with a sentence that names the field. That engines
outlive hundreds of such requests is shown in tests/daemon, on a real one.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, COMPLETION, running

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
IMAGE = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}
VOCABULARY = 4096


class Case(NamedTuple):
    """What an advisory was about.

    Attributes:
        what: the advisory and the hole.
        path: of the route.
        fields: of the request, as JSON texts; some are no JSON.
        named: what the refusal names.
    """

    what: str
    path: str
    fields: dict[str, str]
    named: str


CASES = [
    *(
        Case(f"CVE-2026-54235: {field} is not finite", COMPLETIONS, {field: value}, "")
        for field in ("temperature", "top_p", "repetition_penalty", "presence_penalty")
        for value in ("NaN", "Infinity", "-Infinity", "1e999")
    ),
    *(
        Case("CVE-2026-34756: millions of answers", path, {"n": value}, "n")
        for path in (CHATS, COMPLETIONS)
        for value in ("1000000000", "-1", "0", "1e9", "true", '"7"')
    ),
    *(
        Case(f"vLLM 54195: ids that are no tokens in {field}", COMPLETIONS, {field: value}, field)
        for field, value in (
            ("logit_bias", f'{{"{VOCABULARY}": 1}}'),
            ("logit_bias", '{"-1": 1}'),
            ("logit_bias", f'{{"{2**31}": 1}}'),
            ("stop_token_ids", f"[{VOCABULARY}]"),
            ("stop_token_ids", "[-1]"),
            ("stop_token_ids", "[7.0]"),
            ("allowed_token_ids", f"[{VOCABULARY}]"),
            ("prompt", f"[{VOCABULARY}]"),
            ("prompt", "[-1]"),
            ("prompt", f"[{2**63}]"),
        )
    ),
    Case(
        "CVE-2026-114051: more tokens at least than at most",
        COMPLETIONS,
        {"min_tokens": "9", "max_tokens": "8"},
        "min_tokens",
    ),
    Case(
        "CVE-2026-114051: the same where the most is the context",
        COMPLETIONS,
        {"min_tokens": "100000", "max_tokens": "null"},
        "min_tokens",
    ),
    *(
        Case("CVE-2024-8768: no prompt at all", COMPLETIONS, {"prompt": value}, "prompt")
        for value in ('""', "[]", "[[]]", "null", '[""]')
    ),
    *(
        Case("CVE-2025-61620: a template of the client's", path, {field: value}, field)
        for path, field, value in (
            (CHATS, "chat_template", '"{{ cycler.__init__ }}"'),
            (CHATS, "chat_template_kwargs", '{"messages": []}'),
            (CHATS, "chat_template_kwargs", '{"add_generation_prompt": 1}'),
        )
    ),
    *(
        Case("CVE-2025-62164: tensors of the client's", COMPLETIONS, {field: value}, field)
        for field, value in (("prompt_embeds", '"gASVAAAA"'),)
    ),
    Case(
        "CVE-2025-6242: an address that the server fetches",
        CHATS,
        {"messages": json.dumps([{"role": "user", "content": [IMAGE]}])},
        "messages",
    ),
    Case("CVE-2026-105756: a salt that is no text", COMPLETIONS, {"cache_salt": "[]"}, ""),
    Case(
        "CVE-2025-48944: a tool whose schema is none",
        CHATS,
        {"tools": '[{"type": "function", "function": {"name": "f", "parameters": 7}}]'},
        "tools",
    ),
    *(
        Case("CVE-2026-21869: a number below nothing", COMPLETIONS, {field: value}, field)
        for field in ("max_tokens", "top_k", "logprobs", "min_tokens")
        for value in ("-2", str(2**63), str(-(2**63) - 1), "1e3", "true")
    ),
    *(
        Case("CVE-2026-21869: a seed of more than 64 bits", path, {"seed": value}, "seed")
        for path in (CHATS, COMPLETIONS)
        for value in (str(2**64), str(-(2**63) - 1), "1.5", "true", '"1"')
    ),
    *(
        Case("halves of surrogate pairs", path, {field: value}, "")
        for path, field, value in (
            (COMPLETIONS, "prompt", '"\\ud800"'),
            (COMPLETIONS, "stop", '["\\udc00x"]'),
            (CHATS, "messages", '[{"role": "user", "content": "a\\ud83d"}]'),
            (CHATS, "user", '"\\udfff"'),
        )
    ),
    *(
        Case("CVE-2023-6021: a name that is a path", path, {"model": json.dumps(name)}, "model")
        for path in (CHATS, COMPLETIONS)
        for name in ("../nano", "nano/../../etc/passwd", "/etc/passwd", "nano\u0000", "..\\nano")
    ),
]


async def test_each_is_refused_with_its_name_and_no_engine_hears_of_it(text: TextModel) -> None:
    wrong = []
    fleet = FakeFleet(says([100]))
    async with running(text, fleet) as gateway:
        for case in CASES:
            body = CHAT if case.path == CHATS else COMPLETION
            given = {key: json.dumps(value) for key, value in body.items()} | case.fields
            content = ",".join(f'"{key}":{value}' for key, value in given.items())
            answer = await gateway.http.post(
                case.path, content=f"{{{content}}}", headers={"content-type": "application/json"}
            )
            said: dict[str, Any] = answer.json().get("error", {})
            names = f"{said.get('param')} {said.get('message')}"
            if answer.status_code not in (400, 404) or case.named not in names or fleet.jobs:
                wrong.append((case, answer.status_code, said))
                fleet.jobs.clear()
    assert wrong == []
