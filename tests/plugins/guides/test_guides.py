"""Guides: both pass the kit."""

from gatewayd_guide_llguidance.config import LlguidanceConfig
from gatewayd_guide_llguidance.strategy import Llguidance
from gatewayd_guide_xgrammar.config import XgrammarConfig
from gatewayd_guide_xgrammar.strategy import Xgrammar
from gatewayd_hooks.testing.guiding import GuideConformance
from gatewayd_hooks.testing.samples.guide_texts import SAMPLES


class TestLlguidance(GuideConformance):
    def make(self) -> Llguidance:
        return Llguidance(LlguidanceConfig())

    def test_it_knows_every_form(self) -> None:
        with self.opened() as guide:
            assert len(self.known(guide)) == len(SAMPLES) == 7


class TestXgrammar(GuideConformance):
    def make(self) -> Xgrammar:
        return Xgrammar(XgrammarConfig())

    def test_it_knows_every_form(self) -> None:
        with self.opened() as guide:
            assert len(self.known(guide)) == len(SAMPLES)
