"""Conformance kit: tests that every strategy of a kind must pass, built-in or third-party.

Subclass the class of your kind and say how to build your strategy:

    from gatewayd_hooks.testing.scheduling import SchedulerConformance

    class TestLottery(SchedulerConformance):
        def make(self):
            return Lottery(LotteryConfig())

Importing this package imports nothing; its modules need pytest, numpy and hypothesis, those for
logits processors, KV codecs and KV compression torch as well.
"""
