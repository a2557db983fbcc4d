"""Pytest plugin for nested runs: the kit draws few cases and does not shrink failures.

Ten are for tests of what runs the kit, more, by ``KIT_EXAMPLES``, for those of strategies and
templates. All cases of the kit are drawn for the built-in strategies, in ``test_conformance``.
"""

import os

from hypothesis import Phase, settings

from gatewayd_hooks.testing.samples import campaign as of_the_kit

of_the_kit.campaign = settings(
    of_the_kit.campaign,
    max_examples=int(os.environ.get("KIT_EXAMPLES", "10")),
    phases=[Phase.explicit, Phase.generate],
)
of_the_kit.storms = of_the_kit.campaign
