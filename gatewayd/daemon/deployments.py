"""Versions of models: deployed beside the present one, promoted, or rolled back.

A version gets a share of its model's requests, always the same keys, tenants or conversations, and
no name of its own. What fails at it is answered by the present version. It is rolled back without
an operator if it breaks its rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import ValidationError

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
from gatewayd_hooks.host.settings import problems_in

_log = logging.getLogger("gatewayd.daemon")

_JUDGE_SECONDS = 1.0
_GRACE_SECONDS = 600.0
_RULE = "the rollback rule"
_NAMES = ("served_names",)


@dataclass(frozen=True, eq=False, kw_only=True)
class _OnTrial:
    """A deployment with what ends with it."""

    terms: DeploymentTerms
    model: ModelParts
    version: ModelParts
    deployment: Deployment
    ends: tuple[Callable[[], None], ...]

    def close(self) -> None:
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
    """

    def __init__(
        self,
        served: ServedModels,
        catalogue: Catalogue,
        plugged: LoadedPlugins,
        metrics: RouteCollector,
        records: DeploymentRecords,
    ) -> None:
        self._served = served
        self._catalogue = catalogue
        self._plugged = plugged
        self._metrics = metrics
        self._records = records
        self._lock = asyncio.Lock()
        self._on_trial: dict[str, _OnTrial] = {}
        self._rolled_back: dict[str, str] = {}
        self.services_of: Callable[[Target], Services] | None = None

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
            model = self._served.find(name)
            if model is None or model.is_on_trial:
                raise ChangeRefused(f"there is no local model {name!r}")
            name = model.name
            before = self._on_trial.get(name)
            terms = self._terms(name, body, before)
            if before is not None:
                # The version stays loaded; its figures begin anew.
                before.close()
                self._begin(terms, model, before.version)
            else:
                version = await self._served.add_version(
                    name, terms.version, _entry_of(terms.table)
                )
                self._begin(terms, model, version)
            self._rolled_back.pop(name, None)
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
            ChangeRefused: there is no deployment.
        """
        async with self._lock:
            self._check_ready(name)
            trial = self._end(name)
            await self._served.promote(
                trial.model, trial.version, _entry_of(trial.terms.table), seconds, who
            )
            self._records.persist(trial.deployment.name, None, who)
            _log.warning("%s promoted to %s by %s", trial.terms.version, name, who)
            return trial.terms.version

    async def roll_back(self, name: str, seconds: float, who: str) -> str:
        """End a deployment: the present version stays; running requests of both are finished.

        Returns:
            Name of the version.

        Raises:
            ChangeRefused: there is no deployment.
        """
        async with self._lock:
            trial = self._end(name)
            self._records.persist(trial.deployment.name, None, who)
            _log.warning("%s of %s rolled back by %s", trial.terms.version, name, who)
            await self._served.remove_version(trial.version, seconds)
            return trial.terms.version

    async def run(self) -> None:
        """Restore persisted deployments, and roll back versions that break their rules."""
        for name, value in self._records.present.items():
            try:
                await self._restore(name, value)
            except (ChangeRefused, msgspec.ValidationError) as error:
                _log.error("the deployment of a version of %s is not restored: %s", name, error)
        while True:
            await asyncio.sleep(_JUDGE_SECONDS)
            for name, trial in list(self._on_trial.items()):
                if breach := trial.deployment.breach:
                    self._rolled_back[name] = f"{trial.terms.version}: {breach}"
                    _log.error("%s of %s is rolled back: %s", trial.terms.version, name, breach)
                    # An operator may have ended it meanwhile.
                    with contextlib.suppress(ChangeRefused):
                        await self.roll_back(name, _GRACE_SECONDS, _RULE)

    def view(self) -> DeploymentsView:
        """Describe all deployments."""
        return DeploymentsView([_row(one) for one in self._on_trial.values()], self._rolled_back)

    async def _restore(self, name: str, value: Any) -> None:  # noqa: ANN401 - JSON
        terms = msgspec.convert(value, DeploymentTerms)
        async with self._lock:
            model = self._served.find(name)
            if model is None:
                raise ChangeRefused("the model is not served")
            entry = _entry_of(terms.table)
            self._begin(terms, model, await self._served.add_version(name, terms.version, entry))

    def _begin(self, terms: DeploymentTerms, model: ModelParts, version: ModelParts) -> None:
        stable, trial = model.target, version.target
        figures = {one.name: VersionFigures() for one in (stable, trial)}
        weights = {stable.name: 1 - terms.weight, trial.name: terms.weight}
        targets = [stable.name, trial.name]
        entry = RouteEntry.model_validate(
            {"strategy": "split", "targets": targets, "split": {"weights": weights, "by": terms.by}}
        )
        router = open_router(stable.name, entry, self._plugged, VersionRouter)
        router.stable = stable.name
        if self.services_of is None:
            raise RuntimeError("the daemon is not composed yet")
        shadowed = ShadowFigures()
        copies = ShadowCopies(terms.shadow, shadowed, self.services_of(trial))
        split = ModelRoute(
            name=stable.name,
            targets=tuple(targets),
            router=router,
            metrics=AttemptCounter(self._metrics, figures),
            charged_as=stable.name,
            shadow=copies.record if terms.shadow else None,
        )
        deployment = Deployment(
            stable=stable,
            version=trial,
            weight=terms.weight,
            by=terms.by,
            shadow=terms.shadow,
            rule=RollbackRule(
                most_errors=terms.most_errors,
                least_goodput=terms.least_goodput,
                least_requests=terms.least_requests,
            ),
            split=split,
            figures=figures,
            shadowed=shadowed,
        )
        ends = (
            deployment.judge_by(lambda: model.control.config.slo),
            stable.metrics.listen(copies.ended),
            copies.close,
            router.close,
        )
        self._catalogue.divide(stable, trial, split)
        self._on_trial[stable.name] = _OnTrial(
            terms=terms,
            model=model,
            version=version,
            deployment=deployment,
            ends=ends,
        )

    def _check_ready(self, name: str) -> None:
        for trial in self._on_trial.values():
            if name in trial.model.target.names and not trial.version.fleet.is_ready:
                raise ChangeRefused(
                    f"{trial.terms.version} is not ready: `gatewayd model versions` shows its state"
                )

    def _end(self, name: str) -> _OnTrial:
        model = self._served.find(name)
        trial = self._on_trial.pop(name if model is None else model.name, None)
        if trial is None:
            raise ChangeRefused(f"no version of {name!r} is on trial")
        self._catalogue.unite(trial.deployment.stable)
        trial.close()
        return trial

    def _terms(self, name: str, body: DeployBody, before: _OnTrial | None) -> DeploymentTerms:
        given = {
            field: value
            for field in body.__struct_fields__
            if (value := getattr(body, field)) is not msgspec.UNSET
        }
        if before is None:
            if "table" not in given:
                raise ChangeRefused(f"no version of {name!r} is on trial: give the path of one")
            terms = DeploymentTerms(version=self._free_name(name), **given)
        elif "table" in given:
            raise ChangeRefused(
                f"{before.terms.version} is on trial: promote it or roll it back first"
            )
        else:
            terms = msgspec.structs.replace(before.terms, **given)
        _check(terms)
        return terms

    def _free_name(self, name: str) -> str:
        number = 2
        while f"{name}-v{number}" in self._catalogue or self._served.find(f"{name}-v{number}"):
            number += 1
        return f"{name}-v{number}"


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


def _entry_of(table: Mapping[str, Any]) -> ModelEntry:
    """Read the table of a version.

    Raises:
        ChangeRefused: it is not valid.
    """
    if wrong := [name for name in _NAMES if name in table]:
        raise ChangeRefused(f"{wrong[0]}: a version has its model's names")
    try:
        return ModelEntry.model_validate(table)
    except ValidationError as error:
        raise ChangeRefused("; ".join(problems_in(ModelEntry, error))) from None


def _row(trial: _OnTrial) -> DeploymentRow:
    deployment, shadowed = trial.deployment, trial.deployment.shadowed
    mean = shadowed.common / shadowed.compared if shadowed.compared else None
    return DeploymentRow(
        model=deployment.name,
        by=trial.terms.by,
        stable=_version_row(trial.model, deployment, 1 - deployment.weight),
        version=_version_row(trial.version, deployment, deployment.weight),
        shadow=ShadowRow(
            share=deployment.shadow,
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
