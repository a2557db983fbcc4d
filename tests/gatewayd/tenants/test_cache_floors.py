"""KV cache floors: the sum leaves cache to tenants without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewayd.errors import InvalidRequest
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import says
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import town


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


async def test_a_change_that_keeps_more_than_nine_tenths_is_refused_with_the_sum(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, says([300])) as here:

        async def change(tenant: str, floor: str | None) -> None:
            await here.act("PATCH", f"/admin/tenants/{tenant}", {"kv_floor": floor})

        await here.tenant("a", kv_floor="60%")
        with pytest.raises(InvalidRequest, match=r"add up to 90\.001 % .* at most 90 %") as refusal:
            await here.tenant("b", kv_floor="30.001%")
        assert refusal.value.param == "kv_floor"
        await here.tenant("b", kv_floor="30%")
        await here.tenant("c", kv_floor="700")
        with pytest.raises(InvalidRequest, match="add up to 190 % "):
            await change("c", "100%")
        with pytest.raises(InvalidRequest, match=r"add up to 90\.5 % "):
            await change("default", "0.5%")
        floors = {row["tenant"]: row["kv_floor"] for row in await here.act("GET", "/admin/tenants")}
        assert floors == {"a": "60%", "b": "30%", "c": "700", "default": None}, "all or nothing"
        actions = [row["target"] for row in (await here.act("GET", "/admin/audit"))["rows"]]
        assert actions == ["c", "b", "a"]
        await here.act("DELETE", "/admin/tenants/a")
        await change("c", "60%")


async def test_floors_from_before_there_was_a_limit_may_be_lowered(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town(text, folder, says([300])) as here:
        with monkeypatch.context() as patch:
            patch.setattr("gatewayd.tenants.quotas._MOST_KEPT", 1000)
            await here.tenant("a", kv_floor="100%")
            await here.tenant("b", kv_floor="100%")
        await here.act("PATCH", "/admin/tenants/b", {"weight": 2})
        await here.act("PATCH", "/admin/tenants/b", {"kv_floor": "50%"})
        with pytest.raises(InvalidRequest, match="add up to 160 %"):
            await here.act("PATCH", "/admin/tenants/b", {"kv_floor": "60%"})
