"""Live changes: refusals of a running daemon; all engines agree or none changes."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gatewayd.admin.control import ChangeRefused, Control
from gatewayd.admin.overrides.persisted_overrides import Overrides
from gatewayd.config.tables import Config
from gatewayd.engines.fleet import EngineFleet
from gatewayd.plugins.loaded import LoadedPlugins
from gatewayd_hooks.host.fence import StrategyHang
from gatewayd_route_least_loaded.config import LeastLoadedConfig
from gatewayd_route_least_loaded.strategy import LeastLoaded
from gatewayd_route_prefix.strategy import Prefix

SECRET = "correct-horse-battery-staple-42"


class Swaps:
    """Engines that take whatever they are given."""

    def __init__(self) -> None:
        self.made: list[tuple[str, list[str]]] = []
        self.proven: list[bool] = []
        self.limits: list[Any] = []

    def set_limits(self, limits: Any) -> None:
        """See ``EngineSwaps``."""
        self.limits.append(limits)

    async def swap(self, kind: str, choices: list[Any], *, is_proven: bool) -> bool:
        """See ``EngineSwaps``."""
        self.proven.append(is_proven)
        self.made.append((kind, [choice.name for choice in choices]))
        return False


def control_of(config: Config, kept: Overrides | None = None) -> tuple[Control, Swaps]:
    """A control over engines that agree, with the installed plugins."""
    swaps = Swaps()
    plugged = LoadedPlugins.load(config, model="nano")
    fleet = cast(
        EngineFleet,
        SimpleNamespace(
            swaps=swaps,
            router=plugged.router,
            admission=plugged.admission,
            backlog=SimpleNamespace(),
        ),
    )
    return Control(config, fleet, plugged, kept), swaps


@pytest.fixture
def marked() -> tuple[Control, Swaps]:
    """Answers carry a mark."""
    table = {"strategies": ["bias", "watermark"], "watermark": {"secret": SECRET}}
    return control_of(Config(logits_processor=table))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "settings", "answer"),
    [
        (
            ["bias", "watermark", "bias"],
            {},
            "[logits_processor]: strategies is ['bias', 'watermark', 'bias']: bias is listed twice",
        ),
        (["bias", 3], {}, "[logits_processor]: strategies.1 is 3: it should be a valid string"),
        ("bias", {}, "[logits_processor]: strategies is 'bias': it should be a valid list"),
    ],
)
async def test_what_a_slot_cannot_hold_is_refused_in_a_sentence(
    marked: tuple[Control, Swaps], names: Any, settings: dict[str, Any], answer: str
) -> None:
    control, swaps = marked
    with pytest.raises(ChangeRefused) as refusal:
        await control.swap("logits_processor", names, settings, "me")
    assert str(refusal.value) == answer
    assert not swaps.made


def test_a_limit_out_of_its_bounds_is_refused_in_a_sentence(marked: tuple[Control, Swaps]) -> None:
    with pytest.raises(ChangeRefused) as refusal:
        marked[0].set_limits({"max_waiting_tokens": 0}, "me")
    assert str(refusal.value) == (
        "[queue]: max_waiting_tokens is 0: it should be greater than or equal to 1"
    )


async def test_a_tier_named_twice_is_refused_in_a_sentence() -> None:
    control, swaps = control_of(Config())
    with pytest.raises(ChangeRefused) as refusal:
        await control.swap("kv_tier", ["host", "host"], {}, "me")
    assert str(refusal.value) == ("[kv_tier]: strategies is ['host', 'host']: host is listed twice")
    assert not swaps.made


@pytest.mark.parametrize("kind", ["kv_codec", "quantizer"])
async def test_what_is_fixed_while_engines_run_needs_a_restart(kind: str) -> None:
    control, swaps = control_of(Config())
    refused = rf"^{kind} cannot be changed .* weights or KV cache .* set \[{kind}\] .* restart$"
    with pytest.raises(ChangeRefused, match=refused):
        await control.swap(kind, ["int8"], {}, "me")
    assert not swaps.made


async def test_a_swap_leaves_the_limits_in_the_table_of_its_kind_as_they_are() -> None:
    guide = {"compile_seconds": 3.5, "compile_memory": "64MiB", "processes": 5}
    control, _ = control_of(Config(guide=guide))  # type: ignore[arg-type]
    before = control.config.guide
    await control.swap("guide", ["none"], {}, "me")
    assert control.config.guide == before.model_copy(update={"strategy": "none"})


async def test_what_an_operator_changes_during_a_reload_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control, swaps = control_of(Config())
    checking, may_end = threading.Event(), threading.Event()

    def slow(new: Config) -> list[str]:
        checking.set()
        may_end.wait(20)
        return []

    monkeypatch.setattr("gatewayd.admin.control.check_strategies", slow)
    file = Config(queue={"max_waiting_tokens": 5000})  # type: ignore[arg-type]
    reloading = asyncio.create_task(control.reload(file, "SIGHUP"))
    await asyncio.to_thread(checking.wait, 20)
    control.set_limits({"max_waiting_requests": 77}, "me")
    control.set_slo({"realtime": {"ttft_ms": 123.0}}, "me")
    swapping = asyncio.create_task(control.swap("scheduler", ["priority"], {}, "me"))
    await asyncio.sleep(0.01)
    may_end.set()
    await asyncio.gather(reloading, swapping)
    limits = control.limits()
    assert (limits["max_waiting_requests"], limits["max_waiting_tokens"]) == (77, 5000)
    assert control.config.slo.realtime.ttft_ms == 123.0
    assert control.config.scheduler.strategy == "priority"
    assert swaps.made == [("scheduler", ["priority"])]


async def test_what_is_ours_and_reads_no_file_needs_no_engine_to_try_it() -> None:
    control, swaps = control_of(Config())
    for kind, name in (("scheduler", "fcfs"), ("drafter", "ngram"), ("drafter", "none")):
        await control.swap(kind, [name], {}, "me")
    assert swaps.proven == [True, False, True]


async def test_a_setting_that_needs_a_restart_stays_while_its_strategy_is_left_out() -> None:
    drafter = {"strategy": "medusa", "medusa": {"heads": "a"}}
    control, swaps = control_of(Config(drafter=drafter))  # type: ignore[arg-type]
    for name in ("medusa", "none", "ngram"):
        await control.swap("drafter", [name], {}, "me")
        with pytest.raises(ChangeRefused, match=r"^\[drafter.medusa\] heads needs a restart$"):
            await control.swap("drafter", ["medusa"], {"medusa": {"heads": "b"}}, "me")
    await control.swap("drafter", ["medusa"], {"medusa": {"heads": "a"}}, "me")
    assert [names for _, names in swaps.made] == [["medusa"], [], ["ngram"], ["medusa"]]


async def _refusal(control: Control, kind: str, name: str) -> str:
    """What a swap is refused with, while the event loop goes on."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    beating = asyncio.create_task(beat())
    with pytest.raises(ChangeRefused) as refusal:
        await control.swap(kind, [name], {}, "me")
    beating.cancel()
    assert beats > 2  # of thirty; of none or one, if it were held up
    return str(refusal.value)


async def test_a_router_that_hangs_while_it_is_opened_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control, _ = control_of(Config(engine={"load_seconds": 0.3}))  # type: ignore[arg-type]
    may_end = threading.Event()
    with monkeypatch.context() as broken:
        broken.setattr(Prefix, "open", lambda *_: may_end.wait(20))
        assert "router.prefix did not return" in await _refusal(control, "router", "prefix")
    may_end.set()
    assert control._fleet.router.name == "least_loaded"
    await control.swap("router", ["prefix"], {}, "me")
    assert control._fleet.router.name == "prefix"


async def test_a_plugin_that_hangs_while_it_is_looked_at_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control, swaps = control_of(Config(engine={"load_seconds": 0.3}))  # type: ignore[arg-type]
    may_end = threading.Event()
    with monkeypatch.context() as broken:
        broken.setattr(control._plugged.host, "info", lambda *_: may_end.wait(20))
        assert "drafter.ngram did not return" in await _refusal(control, "drafter", "ngram")
    may_end.set()
    await control.swap("drafter", ["ngram"], {}, "me")
    assert swaps.made == [("drafter", ["ngram"])]


@pytest.mark.parametrize("method", ["import_state", "export_state", "close"])
async def test_a_router_that_hangs_at_a_handover_is_interrupted_and_named(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(engine={"strategy_hang_seconds": 0.2})  # type: ignore[arg-type]
    control, _ = control_of(config)

    def hang(*_: Any) -> None:
        time.sleep(60)

    router = control._fleet.router
    old, new = LeastLoaded(LeastLoadedConfig()), LeastLoaded(LeastLoadedConfig())
    for one, name in ((old, "export_state"), (new, "import_state")):
        setattr(one, name, lambda *_: True)
    setattr(new if method == "import_state" else old, method, hang)
    router.replace(old, "old")
    began = time.monotonic()
    if method == "close":
        assert router.replace(new, "new")
        assert "old.close hung at" in caplog.text
    else:
        with pytest.raises(StrategyHang, match=rf"{method} hung at"):
            router.replace(new, "new")
        assert router.name == "old"
    assert 0.2 <= time.monotonic() - began < 30
