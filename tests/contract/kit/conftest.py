"""Fixtures: run a conformance class on a correct or deliberately broken strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import Phase, settings

from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind, StrategyInfo

_KIT_CASES = 100
"""What third parties run: some of what is broken here shows in one case of fifty."""


@cache
def info(kind: Kind, name: str) -> StrategyInfo[Any]:
    return PluginHost(Catalog.installed()).info(kind, name)


def fails(case: Any, name: str) -> bool:
    """Whether one test of a conformance class fails, by an assertion or by a raise."""
    test = getattr(case, name)
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(test, "hypothesis"):
            # A failure is all that is wanted here, not the smallest example of it.
            own = test.__func__._hypothesis_internal_use_settings
            hasty = settings(
                own,
                max_examples=max(own.max_examples, _KIT_CASES),
                phases=[Phase.explicit, Phase.generate],
            )
            patch.setattr(test.__func__, "_hypothesis_internal_use_settings", hasty)
        try:
            test()
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever it raises, it failed
            return True
    return False


def failing(
    conformance: type[Any],
    kind: Kind,
    name: str,
    broken: Callable[[Any], None] | None = None,
    words: str = "",
) -> Iterator[str]:
    """Which tests of a conformance class a built-in fails, once something of it is broken.

    Of those alone that have some words in their name, or of the one that is called so.
    """

    def make(case: Any) -> Any:
        offer = info(kind, name)
        strategy = offer.build(offer.config_type())
        if broken is not None:
            broken(strategy)
        return strategy

    case = type("Case", (conformance,), {"make": make})()
    tests = [test for test in dir(conformance) if test.startswith("test_") and words in test]
    if words in tests:
        tests = [words]
    return (test for test in tests if fails(case, test))


@pytest.fixture
def verdict() -> Callable[..., list[str]]:
    """All that ``failing`` finds."""
    return lambda *args: list(failing(*args))


@pytest.fixture
def catches() -> Callable[..., bool]:
    """Whether it finds anything: no test is run after the first that fails."""
    return lambda *args: any(True for _ in failing(*args))
