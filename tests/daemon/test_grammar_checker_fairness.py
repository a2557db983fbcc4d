"""Grammar checker fairness: checker-killing grammars do not block another tenant's schema.

Against a real daemon and real checkers. The routes that render prompts check grammars too, and ask
no engine: what is timed is the check.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.admin.client import call
from tests.daemon.conftest import NANO_DAEMON

PATH = "/v1/completions/render"
BOMBS = {
    "expressions": {"guided_regex": "|".join(f"[a-z]{{{n},{2 * n}}}x" for n in range(50, 4000))},
    "letters": {"guided_grammar": "a" * 60_000},
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_small_schema_waits_for_no_bomb(
    start_daemon: Callable[..., Any], tmp_path: Path, bomb: str
) -> None:
    socket = str(tmp_path / "admin.sock")
    env = {
        "GATEWAYD_ADMIN__SOCKET": socket,
        "GATEWAYD_API_KEY": "operator",
        "GATEWAYD_GUIDE__COMPILE_SECONDS": "0.05" if bomb == "expressions" else "1",
    }
    daemon = await asyncio.to_thread(start_daemon, command=NANO_DAEMON, env=env)
    keys = {}
    for name in ("bomber", "quiet"):
        await asyncio.to_thread(call, socket, "POST", "/admin/tenants", {"tenant": name})
        made = await asyncio.to_thread(call, socket, "POST", "/admin/keys", {"tenant": name})
        keys[name] = made["secret"]
    numbers, answers = itertools.count(), list[int]()
    ((field, text),) = BOMBS[bomb].items()

    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:

        async def ask(tenant: str, **fields: Any) -> int:
            body = {"model": "nano", "prompt": "x", **fields}
            headers = {"authorization": f"Bearer {keys[tenant]}"}
            return (await http.post(PATH, json=body, headers=headers)).status_code

        async def attack() -> None:
            while True:
                answers.append(await ask("bomber", **{field: f"{text[:60_000]}z{next(numbers)}"}))

        async def small() -> float:
            schema = {"type": "object", "properties": {f"p{next(numbers)}": {"type": "string"}}}
            began = time.monotonic()
            assert await ask("quiet", guided_json=schema) == 200
            return time.monotonic() - began

        await small()
        alone = sorted([await small() for _ in range(20)])
        attackers = [asyncio.create_task(attack()) for _ in range(4)]
        await asyncio.sleep(1)
        beside = sorted([await small() for _ in range(40)])
        for task in attackers:
            task.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)
    print(f"alone {alone[10]:.3f} {alone[-1]:.3f} s, beside {beside[30]:.3f} {beside[-1]:.3f} s")
    assert set(answers) <= {400, 429}
    assert answers
    # Three of four: a busy machine delays some. A bomb takes longer, and there are four.
    assert beside[30] < min(max(0.3, 8 * alone[10]), 1.0)
