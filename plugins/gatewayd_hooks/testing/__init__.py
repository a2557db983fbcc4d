"""The conformance kit: what every strategy of a kind must do, for built-ins and strangers alike.

Subclass the class of your kind and say how to build your strategy:

    from gatewayd_hooks.testing.scheduling import SchedulerConformance

    class TestLottery(SchedulerConformance):
        def make(self):
            return Lottery(LotteryConfig())

Importing this package imports nothing; its modules need pytest, numpy and hypothesis, those
for logits processors, KV codecs and KV compression torch as well.
"""
