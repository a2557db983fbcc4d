"""A plugin for a pytest that a test starts: the kit draws ten cases and does not shrink a failure.

It is for tests of what runs the kit. The kit itself, and each strategy and template that those use,
have all their cases elsewhere: ``test_conformance``, ``test_scaffold``.
"""

from hypothesis import Phase, settings

from gatewayd_hooks.testing import campaign as of_the_kit

of_the_kit.campaign = settings(
    of_the_kit.campaign, max_examples=10, phases=[Phase.explicit, Phase.generate]
)
of_the_kit.storms = of_the_kit.campaign
