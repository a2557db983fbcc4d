"""Hypothesis settings of the kit: few cases, reproducible, without a deadline."""

from hypothesis import HealthCheck, settings

campaign = settings(
    max_examples=100,
    deadline=None,
    # The same cases on every run, as flaky failures are useless.
    derandomize=True,
    database=None,
    # Subclasses share the tests, and slow machines are acceptable.
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)

storms = settings(campaign, max_examples=60)
"""Settings for long cases."""
