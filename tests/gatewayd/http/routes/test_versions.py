"""Two versions of a model: which answers, who is charged, what counts against the new one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gatewayd.catalogue.deployment import (
    AttemptCounter,
    Deployment,
    RollbackRule,
    ShadowFigures,
    VersionFigures,
    VersionRouter,
)
from gatewayd.catalogue.route import ModelRoute
from gatewayd.catalogue.target import ModelTarget
from gatewayd.config.slo import SloTable
from gatewayd.errors import (
    ContextLengthExceeded,
    EngineLost,
    GatewayError,
    QueueFull,
    RequestCancelled,
    TenantNotAdmitted,
)
from gatewayd.http.routing.shadow import ShadowCopies
from gatewayd.http.services import Services
from gatewayd.store.tables import usage
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from tests.gatewayd.fake_fleet import FakeFleet, fails, hangs, says
from tests.gatewayd.gateway import CHAT, running, until
from tests.gatewayd.http.routes.routed import strategy_of
from tests.gatewayd.one_model import another_target
from tests.gatewayd.tenants.tenant_gateway import town

PATH = "/v1/chat/completions"
OLD, NEW = says([300, 301, 302]), says([300, 301, 303])
LOST = EngineLost("the engine was lost")
BUSY = QueueFull("full", retry_after=1.0, by_tokens=False)
LONG = ContextLengthExceeded("too long", param="messages")


class Versions:
    """Divides a gateway's model between its fleet and another one."""

    def __init__(
        self, text: TextModel, fleet: FakeFleet, weight: float = 1.0, shadow: float = 0.0
    ) -> None:
        self.text, self.fleet, self.weight, self.shadow = text, fleet, weight, shadow
        self.figures: dict[str, VersionFigures] = {}
        self.shadowed = ShadowFigures()

    def __call__(self, services: Services) -> None:
        stable = services.target
        assert isinstance(stable, ModelTarget)
        version = another_target(services, self.fleet, self.text, ("nano-v2",))
        self.figures = {name: VersionFigures() for name in ("nano", "nano-v2")}
        weights = {"nano": 1 - self.weight, "nano-v2": self.weight}
        times = PluginTimes(0.05)
        router = VersionRouter(
            strategy_of("split", weights=weights), "split", times, Watchdog(times, 2.0)
        )
        router.stable = "nano"
        router.is_loaded = lambda: self.fleet.condition == "ready"
        copies = ShadowCopies(self.shadow, self.shadowed, services.of(version))
        route = ModelRoute(
            name="nano",
            targets=("nano", "nano-v2"),
            router=router,
            metrics=AttemptCounter(services.metrics.routes, self.figures),
            versions=(stable, version),
            shadow=copies.record if self.shadow else None,
        )
        self.deployment = Deployment(
            stable=stable,
            version=version,
            rule=RollbackRule(least_requests=5),
            figures=self.figures,
            shadowed=self.shadowed,
        )
        self.deployment.judge_by(SloTable)
        stable.metrics.listen(copies.ended)
        services.catalogue.divide(route)

    @property
    def counts(self) -> tuple[int, int]:
        """Requests and errors of the version."""
        found = self.figures["nano-v2"]
        return found.requests, found.errors


async def asked(gateway: Any, **fields: Any) -> tuple[int, str]:
    answer = await gateway.http.post(PATH, json={**CHAT, "max_tokens": 8, **fields})
    return answer.status_code, answer.headers.get("x-gatewayd-target", "")


@pytest.mark.parametrize("weight", [0.999, 1.0])
@pytest.mark.parametrize(("error", "errors"), [(LOST, 1), (BUSY, 0), (LONG, 0)])
async def test_the_present_version_answers_what_fails_at_the_new_one(
    text: TextModel, error: GatewayError, errors: int, weight: float
) -> None:
    versions = Versions(text, FakeFleet(fails(error)), weight=weight)
    async with running(text, FakeFleet(OLD), prepare=versions) as gateway:
        assert await asked(gateway) == (200, "nano")
        assert versions.counts == (errors, errors)
        assert versions.deployment.breach == ""
        for _ in range(5):
            assert await asked(gateway) == (200, "nano")
        assert bool(versions.deployment.breach) == bool(errors)
        if errors:
            assert versions.deployment.breach == "6 of the latest 6 requests failed"


async def test_the_new_version_does_not_answer_what_fails_at_the_present_one(
    text: TextModel,
) -> None:
    fleet = FakeFleet(NEW)
    versions = Versions(text, fleet, weight=0.001)
    async with running(text, FakeFleet(fails(LOST)), prepare=versions) as gateway:
        assert (await asked(gateway))[0] == 500
        assert versions.counts == (0, 0)
        assert versions.figures["nano"].errors == 1


@pytest.mark.parametrize("body", [{"temperature": 9}, {"max_tokens": -1}, {"n": 10_000}])
async def test_a_clients_errors_count_against_no_version(
    text: TextModel, body: dict[str, Any]
) -> None:
    versions = Versions(text, FakeFleet(NEW))
    async with running(text, FakeFleet(OLD), prepare=versions) as gateway:
        for _ in range(8):
            assert (await asked(gateway, **body))[0] == 400
        assert versions.counts == (0, 0)


@pytest.mark.parametrize(
    "error",
    [TenantNotAdmitted("not now", reason="load", retry_after=1.0), RequestCancelled("by hand")],
)
async def test_refusals_of_policies_count_against_no_version(
    text: TextModel, error: GatewayError
) -> None:
    versions = Versions(text, FakeFleet(fails(error)))
    async with running(text, FakeFleet(OLD), prepare=versions) as gateway:
        assert (await asked(gateway))[0] == error.status
        assert versions.counts == (0, 0)
        assert versions.figures["nano-v2"].judged == 0


async def test_neither_version_answers_for_the_other_because_it_is_not_ready(
    text: TextModel,
) -> None:
    fleet, present = FakeFleet(NEW), FakeFleet(OLD)
    versions = Versions(text, fleet, weight=0.5)
    async with running(text, present, prepare=versions) as gateway:
        seen = {(await asked(gateway))[1] for _ in range(40)}
        assert seen == {"nano", "nano-v2"}
        fleet.is_ready = False
        assert {(await asked(gateway))[1] for _ in range(20)} == {"nano"}
        fleet.is_ready, present.is_ready = True, False
        answers = Counter([(await asked(gateway))[1] for _ in range(40)])
        assert min(answers.values()) > 5, answers


async def test_an_answer_that_breaks_off_counts_against_its_version(text: TextModel) -> None:
    versions = Versions(text, FakeFleet(fails(LOST, [300, 301])))
    async with running(text, FakeFleet(OLD), prepare=versions) as gateway:
        answer = await gateway.http.post(PATH, json={**CHAT, "max_tokens": 8, "stream": True})
        assert answer.headers["x-gatewayd-target"] == "nano-v2"
        assert "engine_restarted" in answer.text
        await until(lambda: versions.counts == (1, 1))


async def test_answers_are_charged_and_scoped_as_the_models(
    text: TextModel, tmp_path: Path
) -> None:
    versions = Versions(text, FakeFleet(NEW))
    async with town(text, tmp_path / "s", OLD, prepare=versions) as here:
        await here.tenant("a")
        key = await here.key("a", scopes=["infer:nano"])
        answer = await here.post(PATH, key, {**CHAT, "max_tokens": 8})
        assert (answer.status_code, answer.headers["x-gatewayd-target"]) == (200, "nano-v2")
        # Its own name is not served.
        assert (await here.post(PATH, key, {**CHAT, "model": "nano-v2"})).status_code == 404
        await here.durable.tenancy.ledger.flush()
        (row,) = await here.rows(usage)
        assert (row["model"], row["completion_tokens"]) == ("nano", 3)


async def test_copies_are_free_and_of_the_lowest_class(text: TextModel, tmp_path: Path) -> None:
    fleet = FakeFleet(NEW)
    versions = Versions(text, fleet, weight=0.0, shadow=1.0)
    async with town(text, tmp_path / "s", OLD, prepare=versions) as here:
        await here.tenant("a")
        key = await here.key("a")
        body = {**CHAT, "max_tokens": 8, "temperature": 0}
        answer = await here.post(PATH, key, body)
        assert answer.headers["x-gatewayd-target"] == "nano"
        await until(lambda: versions.shadowed.compared == 1)
        # Two of three tokens are the same.
        assert versions.shadowed.equal == 0
        assert 0 < versions.shadowed.common < 1
        (job,) = fleet.jobs
        assert job.request.priority == 2
        assert job.request.tenant == "a"
        await here.durable.tenancy.ledger.flush()
        assert [row["model"] for row in await here.rows(usage)] == ["nano"]
        assert versions.counts == (0, 0)


async def test_only_so_many_copies_wait(text: TextModel) -> None:
    fleet = FakeFleet(hangs)
    versions = Versions(text, fleet, weight=0.0, shadow=1.0)
    async with running(text, FakeFleet(OLD), prepare=versions) as gateway:
        for _ in range(70):
            assert (await asked(gateway))[0] == 200
        await until(lambda: versions.shadowed.dropped == 70 - 64)
        assert len(fleet.jobs) == 4


def counted(requests: int, *, errors: int = 0, judged: int = 0, good: int = 0) -> VersionFigures:
    figures = VersionFigures()
    for number in range(requests):
        if number < errors:
            figures.failed()
        else:
            figures.answered()
    for number in range(judged):
        figures.judge(is_good=number < good)
    return figures


def test_a_version_is_judged_by_its_latest_requests() -> None:
    figures = counted(100_000)
    for _ in range(10):
        figures.failed()
    assert figures.breach(RollbackRule()) == ""
    figures.failed()
    assert figures.breach(RollbackRule()) == "11 of the latest 200 requests failed"


@pytest.mark.parametrize(
    ("figures", "rule", "said"),
    [
        (counted(49, errors=49), RollbackRule(), ""),
        (counted(50, errors=2), RollbackRule(), ""),
        (counted(50, errors=3), RollbackRule(), "3 of the latest 50 requests failed"),
        (counted(50, errors=50), RollbackRule(most_errors=None), ""),
        (counted(60, judged=50, good=40), RollbackRule(), ""),
        (
            counted(60, judged=50, good=40),
            RollbackRule(least_goodput=0.9),
            "40 of the latest 50 requests met their SLOs",
        ),
        (counted(60, judged=49), RollbackRule(least_goodput=0.9), ""),
    ],
)
def test_a_rule_needs_enough_requests(
    figures: VersionFigures, rule: RollbackRule, said: str
) -> None:
    assert figures.breach(rule) == said
