"""Structs of the admin API for deployments of versions."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Stickiness = Literal["key", "tenant", "conversation"]


class DeploymentTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Terms of a deployment, as they are persisted.

    Attributes:
        version: name of the version.
        table: of the version, as ``[models.NAME]`` of the configuration.
        weight: share of the requests that go to it.
        by: what keeps requests at one version.
        shadow: share of the other requests that are copied to it.
        most_errors: maximum share of its requests that fail; None for any.
        least_goodput: minimum share of its requests that meet all SLOs of their class; None for
            any.
        least_requests: its requests before it is judged.
    """

    version: str
    table: dict[str, Any]
    weight: float = 0.1
    by: Stickiness = "key"
    shadow: float = 0.0
    most_errors: float | None = 0.05
    least_goodput: float | None = None
    least_requests: int = 50


class DeployBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``PUT /admin/versions/{name}``: fields that are absent stay as they are, or are the defaults.

    Attributes:
        table: what a new version sets differently from ``[models.NAME]`` or ``[model]``, at least
            its path; absent to change the terms of the one on trial.
        weight: share of the requests that go to it, 0 to 1.
        by: ``key``, ``tenant`` or ``conversation``: what keeps requests at one version.
        shadow: share of the other requests that are copied to it, 0 to 1.
        most_errors: maximum share of its requests that fail; null for any.
        least_goodput: minimum share of its requests that meet all SLOs of their class; null for
            any.
        least_requests: its requests before it is judged, at least 1.
    """

    table: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    weight: float | msgspec.UnsetType = msgspec.UNSET
    by: Stickiness | msgspec.UnsetType = msgspec.UNSET
    shadow: float | msgspec.UnsetType = msgspec.UNSET
    most_errors: float | msgspec.UnsetType | None = msgspec.UNSET
    least_goodput: float | msgspec.UnsetType | None = msgspec.UNSET
    least_requests: int | msgspec.UnsetType = msgspec.UNSET


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two versions.

    Attributes:
        name: of the version.
        path: of its checkpoint.
        state: as of ``ModelRow``.
        share: of the requests that go to it.
        requests: attempts at it since the deployment, or since the start.
        errors: of these, failed by its fault, and answers that broke off.
        judged: requests that their SLOs judge.
        good: of these, met all SLOs of their class.
    """

    name: str
    path: str
    state: str
    share: float
    requests: int
    errors: int
    judged: int
    good: int


class ShadowRow(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of requests that were sent to the version on trial.

    Attributes:
        share: of the other requests that are copied.
        compared: answers to requests without randomness.
        equal: of these, the same text.
        common: mean share of text with which compared answers begin alike; None without any.
        sampled: answers to requests that draw, whose text need not be the same.
        failed: copies without an answer.
        dropped: copies that were not sent, as too many others waited.
    """

    share: float
    compared: int
    equal: int
    common: float | None
    sampled: int
    failed: int
    dropped: int


class DeploymentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment.

    Attributes:
        model: its name.
        by: what keeps requests at one version.
        stable: the present version.
        version: the one on trial.
        shadow: copies of requests.
        most_errors: maximum share of the version's requests that fail; None for any.
        least_goodput: minimum share of them that meet all SLOs of their class; None for any.
        least_requests: its requests before it is judged.
    """

    model: str
    by: Stickiness
    stable: VersionRow
    version: VersionRow
    shadow: ShadowRow
    most_errors: float | None
    least_goodput: float | None
    least_requests: int


class DeploymentsView(msgspec.Struct, frozen=True):
    """``GET /admin/versions``: all deployments, and those that a rule has ended.

    Attributes:
        deployments: in order of their models.
        rolled_back: why the last version of a model was rolled back by a rule, by its name.
        not_restored: why the version of a model could not be loaded again at the start.
    """

    deployments: list[DeploymentRow]
    rolled_back: dict[str, str]
    not_restored: dict[str, str]


class VersionChanged(msgspec.Struct, frozen=True):
    """Result of a change of a deployment.

    Attributes:
        model: its name.
        version: name of the version.
        done: ``deployed``, ``changed``, ``promoted`` or ``rolled back``.
    """

    model: str
    version: str
    done: str


class GraceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /admin/versions/{name}/promote`` and ``DELETE /admin/versions/{name}``.

    Attributes:
        seconds: time for running requests of the version that ends.
    """

    seconds: float = 600.0
