"""How the kit runs its random cases: few, repeatable, without a deadline."""

from hypothesis import HealthCheck, settings

campaign = settings(
    max_examples=100,
    deadline=None,
    # The same cases on every run: a suite that fails now and then teaches nobody.
    derandomize=True,
    database=None,
    # One test serves every subclass, and a slow machine is no fault.
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)

storms = settings(campaign, max_examples=60)
"""The same for cases that are long."""
