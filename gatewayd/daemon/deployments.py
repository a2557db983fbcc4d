"""Versions of models: deployed beside the present one, promoted, or rolled back.

A version gets a share of its model's requests, always the same keys, tenants or conversations, and
no name of its own. What fails at it is answered by the present version. It is rolled back without
an operator if it breaks its rule.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gatewayd.admin.changes import ChangeRefused
from gatewayd.admin.models import state_of
from gatewayd.admin.overrides.deployment_records import DeploymentRecords
from gatewayd.catalogue.catalogue import Catalogue
from gatewayd.catalogue.deployment import (
    AttemptCounter,
    Deployment,
    RollbackRule,
    ShadowFigures,
    VersionFigures,
    VersionRouter,
)
from gatewayd.catalogue.route import ModelRoute
from gatewayd.catalogue.target import Target
from gatewayd.config.models import ModelEntry
from gatewayd.config.routes import RouteEntry
from gatewayd.daemon.models import ModelParts
from gatewayd.daemon.routes import open_router
from gatewayd.daemon.served_models import ServedModels
from gatewayd.http.routing.shadow import ShadowCopies
from gatewayd.http.services import Services
from gatewayd.metrics.routes import RouteCollector
from gatewayd.plugins.loaded import LoadedPlugins
from gatewayd.wire.deployments import (
    DeployBody,
    DeploymentRow,
    DeploymentsView,
    DeploymentTerms,
    ShadowRow,
    VersionRow,
)

_log = logging.getLogger("gatewayd.daemon")

_JUDGE_SECONDS = 1.0
_GRACE_SECONDS = 600.0
_RULE = "the rollback rule"


@dataclass(frozen=True, eq=False, kw_only=True)
class _OnTrial:
    """A deployment with what ends with it."""

    terms: DeploymentTerms
    model: ModelParts
    version: ModelParts
    deployment: Deployment
    copies: ShadowCopies
    ends: tuple[Callable[[], None], ...]

    def close(self) -> None:
        """End the copies, the figures and the split."""
        for end in self.ends:
            end()


class Deployments:
    """All deployments of a daemon; its methods are called from the event loop only.

    Args:
        served: the models.
        catalogue: their names.
        plugged: loads the split between versions.
        metrics: counts the attempts at versions as those of routes.
        records: persists deployments.
        services_of: returns the services of a target.

    Attributes:
        served: as given.
    """

    def __init__(
        self,
        served: ServedModels,
        catalogue: Catalogue,
        plugged: LoadedPlugins,
        metrics: RouteCollector,
        records: DeploymentRecords,
        services_of: Callable[[Target], Services],
    ) -> None:
        self.served = served
        self._catalogue = catalogue
        self._plugged = plugged
        self._metrics = metrics
        self._records = records
        self._services_of = services_of
        self._lock = asyncio.Lock()
        self._on_trial: dict[str, _OnTrial] = {}
        self._rolled_back: dict[str, str] = {}
        self._not_restored: dict[str, str] = {}
        self._is_closed = False
        # Since the start: metrics of a promoted version keep its name until the end.
        self._used: set[str] = set()

    async def deploy(self, name: str, body: DeployBody, who: str) -> DeploymentTerms:
        """Deploy a version of a model beside the present one, or change the terms of that.

        Args:
            name: of the model.
            body: the version and its terms.
            who: the operator.

        Raises:
            ChangeRefused: it cannot be served, or a term is not valid.
        """
        async with self._lock:
            model = self.served.find(name)
            if model is None or model.is_on_trial:
                raise ChangeRefused(f"there is no local model {name!r}")
            name = model.name
            before = self._on_trial.get(name)
            terms = self._terms(model, body, before)
            if before is not None:
                # The version stays loaded; its figures begin at zero.
                before.close()
                self._begin(terms, model, before.version)
            else:
                await self._load(terms, model)
            self._rolled_back.pop(name, None)
            self._not_restored.pop(name, None)
            self._records.persist(name, msgspec.to_builtins(terms), who)
            _log.warning(
                "%s of %s by %s: %.4g of its requests", terms.version, name, who, terms.weight
            )
            return terms

    async def promote(self, name: str, seconds: float, who: str) -> str:
        """Replace a model by its version on trial; running requests of both are finished.

        Returns:
            Name of the version.

        Raises:
            ChangeRefused: there is no deployment, or the version is not loaded.
        """
        async with self._lock:
            trial = self._find(name)
            version = trial.terms.version
            if trial.version.fleet.condition != "ready":
                raise ChangeRefused(
                    f"{version} is not loaded: `gatewayd model versions` shows its state"
                )
            entry = ModelEntry.model_validate(trial.terms.table)
            ended = self._records.record(trial.deployment.name, None, who)
            self.served.promote(trial.model, trial.version, entry, seconds, who, ended)
            self._forget(trial)
            _log.warning("%s promoted to %s by %s", version, name, who)
            return version

    async def roll_back(self, name: str, seconds: float, who: str) -> str:
        """End a deployment: the present version stays; running requests of both are finished.

        Returns:
            Name of the version.

        Raises:
            ChangeRefused: there is no deployment.
        """
        async with self._lock:
            if self._not_restored.pop(name, None) is not None:
                self._records.persist(name, None, who)
                return f"the version of {name}"
            trial = self._find(name)
            self._end(trial, seconds, who)
            return trial.terms.version

    async def run(self) -> None:
        """Restore persisted deployments, and roll back versions that break their rules."""
        for name, value in self._records.present.items():
            try:
                await self._restore(name, value)
            except Exception as error:  # noqa: BLE001 - the models are served without it
                _log.error("the deployment of a version of %s is not restored: %s", name, error)
                self._not_restored[name] = str(error)
        while True:
            await asyncio.sleep(_JUDGE_SECONDS)
            for name, trial in list(self._on_trial.items()):
                try:
                    await self._judge(name, trial)
                except Exception:  # noqa: BLE001 - the rules of others are still kept
                    _log.exception("%s of %s could not be judged", trial.terms.version, name)

    def view(self) -> DeploymentsView:
        """Describe all deployments."""
        rows = [_row(one) for one in self._on_trial.values()]
        return DeploymentsView(rows, self._rolled_back, self._not_restored)

    def close(self) -> None:
        """End the copies and the rules, because the daemon stops: engines end by that."""
        self._is_closed = True
        for trial in self._on_trial.values():
            trial.copies.close()

    async def wait_ended(self) -> None:
        """Wait until versions that were replaced have ended."""
        await self.served.wait_ended()

    async def _judge(self, name: str, trial: _OnTrial) -> None:
        async with self._lock:
            # An operator may have ended it or changed its terms meanwhile.
            if self._is_closed or self._on_trial.get(name) is not trial:
                return
            breach = trial.deployment.breach
            if trial.version.fleet.is_over:
                breach = f"its engines have failed: {trial.version.fleet.failure}"
            if breach:
                _log.error("%s of %s is rolled back: %s", trial.terms.version, name, breach)
                self._rolled_back[name] = f"{trial.terms.version}: {breach}"
                self._end(trial, _GRACE_SECONDS, _RULE)

    async def _restore(self, name: str, value: Any) -> None:  # noqa: ANN401 - JSON
        terms = msgspec.convert(value, DeploymentTerms)
        async with self._lock:
            model = self.served.find(name)
            if model is None:
                raise ChangeRefused("the model is not served")
            await self._load(terms, model)

    async def _load(self, terms: DeploymentTerms, model: ModelParts) -> None:
        entry = ModelEntry.model_validate(terms.table)
        version = await self.served.add_version(model, terms.version, entry)
        try:
            self._begin(terms, model, version)
        except BaseException:
            self.served.remove_version(version, 0.0)
            raise

    def _begin(self, terms: DeploymentTerms, model: ModelParts, version: ModelParts) -> None:
        stable, trial = model.target, version.target
        self._used.add(trial.name)
        rule = RollbackRule(
            most_errors=terms.most_errors,
            least_goodput=terms.least_goodput,
            least_requests=terms.least_requests,
        )
        deployment = Deployment(
            stable=stable,
            version=trial,
            rule=rule,
            figures={one.name: VersionFigures(rule.window) for one in (stable, trial)},
            shadowed=ShadowFigures(),
        )
        copies = ShadowCopies(terms.shadow, deployment.shadowed, self._services_of(trial))
        router = self._router(terms, stable.name, version)
        split = ModelRoute(
            name=stable.name,
            targets=(stable.name, trial.name),
            router=router,
            metrics=AttemptCounter(self._metrics, deployment.figures),
            versions=(stable, trial),
            shadow=copies.record if terms.shadow else None,
        )
        ends = (
            deployment.judge_by(lambda: model.control.config.slo),
            stable.metrics.listen(copies.ended),
            copies.close,
            router.close,
        )
        self._catalogue.divide(split)
        self._on_trial[stable.name] = _OnTrial(
            terms=terms,
            model=model,
            version=version,
            deployment=deployment,
            copies=copies,
            ends=ends,
        )

    def _router(self, terms: DeploymentTerms, stable: str, version: ModelParts) -> VersionRouter:
        name = version.target.name
        weights = {stable: 1 - terms.weight, name: terms.weight}
        entry = RouteEntry.model_validate(
            {
                "strategy": "split",
                "targets": [stable, name],
                "split": {"weights": weights, "by": terms.by},
            }
        )
        router = open_router(stable, entry, self._plugged, VersionRouter)
        router.stable = stable
        router.is_loaded = lambda: version.fleet.condition == "ready"
        return router

    def _find(self, name: str) -> _OnTrial:
        model = self.served.find(name)
        trial = self._on_trial.get(name if model is None else model.name)
        if trial is None:
            raise ChangeRefused(f"no version of {name!r} is on trial")
        return trial

    def _end(self, trial: _OnTrial, seconds: float, who: str) -> None:
        self._catalogue.unite(trial.deployment.stable)
        self._forget(trial)
        self._records.persist(trial.deployment.name, None, who)
        self.served.remove_version(trial.version, seconds)
        _log.warning("%s of %s rolled back by %s", trial.terms.version, trial.deployment.name, who)

    def _forget(self, trial: _OnTrial) -> None:
        del self._on_trial[trial.deployment.name]
        trial.close()

    def _terms(
        self, model: ModelParts, body: DeployBody, before: _OnTrial | None
    ) -> DeploymentTerms:
        given = {
            field: value
            for field in body.__struct_fields__
            if (value := getattr(body, field)) is not msgspec.UNSET
        }
        if before is not None and "table" in given:
            raise ChangeRefused(
                f"{before.terms.version} is on trial: promote it or roll it back first"
            )
        if before is not None:
            terms = msgspec.structs.replace(before.terms, **given)
        elif "path" not in given.get("table", {}):
            raise ChangeRefused(f"no version of {model.name!r} is on trial: give the path of one")
        else:
            entry = self.served.table_of_version(model, given["table"])
            given["table"] = entry.model_dump(mode="json", exclude_unset=True)
            terms = DeploymentTerms(version=self._free_name(model.name), **given)
        _check(terms)
        return terms

    def _free_name(self, name: str) -> str:
        number = 2
        while (version := f"{name}-v{number}") in self._used or version in self._catalogue:
            number += 1
        return version


def _check(terms: DeploymentTerms) -> None:
    """Check the terms of a deployment.

    Raises:
        ChangeRefused: one is not valid.
    """
    shares = ("weight", "shadow", "most_errors", "least_goodput")
    for field in shares:
        value = getattr(terms, field)
        if value is not None and not 0 <= value <= 1:
            raise ChangeRefused(f"{field} is {value:g}; it must be from 0 to 1")
    if not 1 <= terms.least_requests <= 1_000_000:
        raise ChangeRefused(
            f"least_requests is {terms.least_requests}; it must be from 1 to 1000000"
        )


def _row(trial: _OnTrial) -> DeploymentRow:
    deployment, shadowed = trial.deployment, trial.deployment.shadowed
    mean = shadowed.common / shadowed.compared if shadowed.compared else None
    return DeploymentRow(
        model=deployment.name,
        by=trial.terms.by,
        stable=_version_row(trial.model, deployment, 1 - trial.terms.weight),
        version=_version_row(trial.version, deployment, trial.terms.weight),
        shadow=ShadowRow(
            share=trial.terms.shadow,
            compared=shadowed.compared,
            equal=shadowed.equal,
            common=mean,
            sampled=shadowed.sampled,
            failed=shadowed.failed,
            dropped=shadowed.dropped,
        ),
        most_errors=trial.terms.most_errors,
        least_goodput=trial.terms.least_goodput,
        least_requests=trial.terms.least_requests,
    )


def _version_row(model: ModelParts, deployment: Deployment, share: float) -> VersionRow:
    figures = deployment.figures[model.target.name]
    return VersionRow(
        name=model.target.name,
        path=model.control.config.model.path or "",
        state=state_of(model.target, model.managed),
        share=share,
        requests=figures.requests,
        errors=figures.errors,
        judged=figures.judged,
        good=figures.good,
    )
