"""Built-in strategies: pass the kit for third-party plugins."""

from pathlib import Path

import pytest

from gatewayd_admit_forecast.config import ForecastConfig
from gatewayd_admit_forecast.strategy import Forecast
from gatewayd_admit_room.config import RoomConfig
from gatewayd_admit_room.strategy import Room
from gatewayd_evict_cost.config import CostConfig
from gatewayd_evict_cost.strategy import CostEviction
from gatewayd_evict_lfu.strategy import Lfu
from gatewayd_evict_lru.strategy import Lru
from gatewayd_evict_retention.strategy import Retention
from gatewayd_exec_local.strategy import Local
from gatewayd_hooks.protocols import HttpRequest
from gatewayd_hooks.testing.admission import AdmissionConformance
from gatewayd_hooks.testing.eviction import EvictionConformance
from gatewayd_hooks.testing.execution import ExecutorConformance
from gatewayd_hooks.testing.fake_gateway import request
from gatewayd_hooks.testing.kv_tiers import KvTierConformance
from gatewayd_hooks.testing.logits import LogitsProcessorConformance
from gatewayd_hooks.testing.preemption import PreemptionConformance
from gatewayd_hooks.testing.prefix_caching import PrefixCacheConformance
from gatewayd_hooks.testing.protocols import ProtocolConformance
from gatewayd_hooks.testing.routing import RouterConformance
from gatewayd_hooks.testing.scheduling import SchedulerConformance
from gatewayd_hooks.testing.targets.residency import ResidencyConformance
from gatewayd_hooks.testing.targets.upstreams import (
    CHAT,
    EMBEDDING,
    RecordedAnswer,
    RecordedVectors,
    UpstreamConformance,
)
from gatewayd_hooks.upstreams import UpstreamCall, UpstreamCounts
from gatewayd_logits_bias.strategy import Bias
from gatewayd_logits_min_tokens.strategy import MinTokens
from gatewayd_logits_penalties.strategy import Penalties
from gatewayd_preempt_recompute.strategy import Recompute
from gatewayd_preempt_swap.config import SwapConfig
from gatewayd_preempt_swap.strategy import Swap
from gatewayd_prefix_hash.strategy import HashChain
from gatewayd_prefix_radix.strategy import Radix
from gatewayd_proto_anthropic.strategy import Anthropic
from gatewayd_proto_kserve.config import KserveConfig
from gatewayd_proto_kserve.strategy import Kserve
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.strategy import Ollama
from gatewayd_proto_tgi.config import TgiConfig
from gatewayd_proto_tgi.strategy import Tgi
from gatewayd_residency_cost.config import CostResidencyConfig
from gatewayd_residency_cost.strategy import CheapestToMiss
from gatewayd_residency_lru.config import LruResidencyConfig
from gatewayd_residency_lru.strategy import LeastRecentlyUsed
from gatewayd_residency_schedule.config import ScheduleResidencyConfig
from gatewayd_residency_schedule.strategy import Scheduled
from gatewayd_route_least_loaded.config import LeastLoadedConfig
from gatewayd_route_least_loaded.strategy import LeastLoaded
from gatewayd_route_prefix.config import PrefixConfig
from gatewayd_route_prefix.strategy import Prefix
from gatewayd_sched_fair.config import FairConfig
from gatewayd_sched_fair.strategy import Fair
from gatewayd_sched_fcfs.config import FcfsConfig
from gatewayd_sched_fcfs.strategy import Fcfs
from gatewayd_sched_priority.config import PriorityConfig
from gatewayd_sched_priority.strategy import WeightedClasses
from gatewayd_sched_slo.config import SloConfig
from gatewayd_sched_slo.strategy import LeastSlack
from gatewayd_tier_disk.config import DiskConfig
from gatewayd_tier_disk.strategy import Disk
from gatewayd_tier_host.config import HostConfig
from gatewayd_tier_host.strategy import Host
from gatewayd_upstream_anthropic.config import AnthropicUpstreamConfig
from gatewayd_upstream_anthropic.strategy import AnthropicUpstream
from gatewayd_upstream_openai.config import OpenAiUpstreamConfig
from gatewayd_upstream_openai.strategy import OpenAiUpstream


class TestFcfs(SchedulerConformance):
    def make(self) -> Fcfs:
        return Fcfs(FcfsConfig())


class TestFcfsWithPatience(SchedulerConformance):
    def make(self) -> Fcfs:
        return Fcfs(FcfsConfig(prefix_patience=1e9))


class TestFcfsInSmallChunks(SchedulerConformance):
    def make(self) -> Fcfs:
        return Fcfs(FcfsConfig(max_prefill_chunk=3))


class TestPriority(SchedulerConformance):
    def make(self) -> WeightedClasses:
        return WeightedClasses(PriorityConfig())


class TestPriorityWithOddWeights(SchedulerConformance):
    def make(self) -> WeightedClasses:
        return WeightedClasses(PriorityConfig(realtime=0.001, standard=1e6, batch=3))


class TestFair(SchedulerConformance):
    def make(self) -> Fair:
        return Fair(FairConfig())


class TestFairWithoutPatience(SchedulerConformance):
    def make(self) -> Fair:
        return Fair(FairConfig(lead=5, credit=50))


class TestSlo(SchedulerConformance):
    def make(self) -> LeastSlack:
        return LeastSlack(SloConfig())


class TestSloWithoutTime(SchedulerConformance):
    def make(self) -> LeastSlack:
        return LeastSlack(SloConfig(standard_seconds=1e-3, batch_seconds=1e-3))


class TestRoom(AdmissionConformance):
    def make(self) -> Room:
        return Room(RoomConfig())


class TestForecast(AdmissionConformance):
    def make(self) -> Forecast:
        return Forecast(ForecastConfig(least=1))


class TestHash(PrefixCacheConformance):
    def make(self) -> HashChain:
        return HashChain()


class TestRadix(PrefixCacheConformance):
    def make(self) -> Radix:
        return Radix()


class TestCost(EvictionConformance):
    def make(self) -> CostEviction:
        return CostEviction(CostConfig())


class TestRetention(EvictionConformance):
    def make(self) -> Retention:
        return Retention()


class TestLfu(EvictionConformance):
    def make(self) -> Lfu:
        return Lfu()


class TestLru(EvictionConformance):
    def make(self) -> Lru:
        return Lru()


class TestRecompute(PreemptionConformance):
    def make(self) -> Recompute:
        return Recompute()


class TestSwap(PreemptionConformance):
    def make(self) -> Swap:
        return Swap(SwapConfig())


class TestLeastLoaded(RouterConformance):
    def make(self) -> LeastLoaded:
        return LeastLoaded(LeastLoadedConfig())


class TestPrefix(RouterConformance):
    def make(self) -> Prefix:
        return Prefix(PrefixConfig())


class TestLeastRecentlyUsed(ResidencyConformance):
    def make(self) -> LeastRecentlyUsed:
        return LeastRecentlyUsed(LruResidencyConfig())


class TestCheapestToMiss(ResidencyConformance):
    def make(self) -> CheapestToMiss:
        return CheapestToMiss(CostResidencyConfig())


class TestScheduled(ResidencyConformance):
    def make(self) -> Scheduled:
        return Scheduled(ScheduleResidencyConfig(windows=["a 08:00-18:00", "b 00:00-24:00"]))


class TestLocal(ExecutorConformance):
    def make(self) -> Local:
        return Local()


class TestPenalties(LogitsProcessorConformance):
    def make(self) -> Penalties:
        return Penalties()


class TestBias(LogitsProcessorConformance):
    def make(self) -> Bias:
        return Bias()


class TestMinTokens(LogitsProcessorConformance):
    def make(self) -> MinTokens:
        return MinTokens()


class TestHost(KvTierConformance):
    def make(self) -> Host:
        return Host(HostConfig())


class TestSmallHost(KvTierConformance):
    def make(self) -> Host:
        return Host(HostConfig.model_validate({"memory": 8 * 96}))


class TestDisk(KvTierConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder, self.made = tmp_path, 0

    def make(self) -> Disk:
        self.made += 1
        return Disk(DiskConfig(path=str(self.folder / str(self.made))))


class TestAnthropic(ProtocolConformance):
    def make(self) -> Anthropic:
        return Anthropic()

    def conversations(self) -> list[HttpRequest]:
        ask = b'"model":"nano","max_tokens":9,"messages":[{"role":"user","content":"hi"}]'
        return [
            request("POST", "/v1/messages", b"{%b}" % ask),
            request("POST", "/v1/messages", b'{%b,"stream":true}' % ask),
        ]


class TestOpenAiUpstream(UpstreamConformance):
    def make(self) -> OpenAiUpstream:
        return OpenAiUpstream(OpenAiUpstreamConfig())

    def recordings(self) -> list[RecordedAnswer]:
        begin = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"}}]}\n\n'
        end = b'data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\n'
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
        done = b"data: [DONE]\n\n"
        call = (
            b'data: {"choices":[{"index":0,"delta":{"reasoning":"hm","tool_calls":[{"index":3,'
            b'"id":"c","function":{"name":"now","arguments":"{}"}}]}}]}\n\n'
            b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'
        )
        text = b'data: {"choices":[{"index":0,"text":"hi","finish_reason":"length"}]}\n\n'
        body = {"model": "theirs", "prompt": "once", "max_tokens": 4}
        return [
            RecordedAnswer(CHAT, begin + end + done, "Hello"),
            RecordedAnswer(CHAT, begin + end + usage + done, "Hello", counts=UpstreamCounts(5, 2)),
            RecordedAnswer(
                CHAT, call + done, reasoning="hm", tools=("now",), finish_reason="tool_calls"
            ),
            RecordedAnswer(
                UpstreamCall("completion", body), text + done, "hi", finish_reason="length"
            ),
        ]

    def recorded_vectors(self) -> list[RecordedVectors]:
        numbers = (
            b'{"object":"list","data":[{"object":"embedding","index":1,"embedding":[0.5,-2]},'
            b'{"object":"embedding","index":0,"embedding":[1,0.25]}],"model":"theirs",'
            b'"usage":{"prompt_tokens":6,"total_tokens":6}}'
        )
        packed = (
            b'{"data":[{"index":0,"embedding":"AACAPwAAgD4="},'
            b'{"index":1,"embedding":"AAAAPwAAAMA="}]}'
        )
        vectors = [[1.0, 0.25], [0.5, -2.0]]
        return [
            RecordedVectors(EMBEDDING, numbers, vectors, 6),
            RecordedVectors(EMBEDDING, packed, vectors),
        ]


class TestAnthropicUpstream(UpstreamConformance):
    def make(self) -> AnthropicUpstream:
        return AnthropicUpstream(AnthropicUpstreamConfig())

    def recordings(self) -> list[RecordedAnswer]:
        body = (
            b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
            b'{"input_tokens":5,"cache_read_input_tokens":3,"output_tokens":1}}}\n\n'
            b'event: ping\ndata: {"type":"ping"}\n\n'
            b'event: x\ndata: {"type":"content_block_start","index":0,"content_block":'
            b'{"type":"text","text":""}}\n\n'
            b'event: x\ndata: {"type":"content_block_delta","index":0,"delta":'
            b'{"type":"text_delta","text":"Hello"}}\n\n'
            b'event: x\ndata: {"type":"content_block_start","index":1,"content_block":'
            b'{"type":"tool_use","id":"t","name":"now"}}\n\n'
            b'event: x\ndata: {"type":"content_block_stop","index":1}\n\n'
            b'event: x\ndata: {"type":"message_delta","delta":{"stop_reason":"tool_use"},'
            b'"usage":{"output_tokens":9}}\n\n'
            b'event: x\ndata: {"type":"message_stop"}\n\n'
        )
        return [
            RecordedAnswer(
                *(CHAT, body, "Hello"),
                tools=("now",),
                finish_reason="tool_calls",
                counts=UpstreamCounts(8, 9, 3),
            )
        ]


class TestTgi(ProtocolConformance):
    def make(self) -> Tgi:
        return Tgi(TgiConfig())

    def conversations(self) -> list[HttpRequest]:
        detailed = b'{"inputs":"hi","parameters":{"details":true,"do_sample":true,"best_of":2}}'
        return [
            request("POST", "/generate", b'{"inputs":"hi"}'),
            request("POST", "/generate", detailed),
            request("POST", "/generate_stream", b'{"inputs":"hi"}'),
            request("POST", "/", b'{"inputs":"hi","stream":true}'),
        ]


class TestKserve(ProtocolConformance):
    def make(self) -> Kserve:
        pytest.importorskip("grpc")
        return Kserve(KserveConfig(port=0))


class TestOllama(ProtocolConformance):
    def make(self) -> Ollama:
        return Ollama(OllamaConfig())

    def conversations(self) -> list[HttpRequest]:
        chat = b'"model":"nano","messages":[{"role":"user","content":"hi"}]'
        ask = b'"model":"nano","prompt":"hi"'
        return [
            request("POST", "/api/chat", b"{%b}" % chat),
            request("POST", "/api/chat", b'{%b,"stream":false}' % chat),
            request("POST", "/api/generate", b'{%b,"raw":true}' % ask),
            request("POST", "/api/generate", b'{%b,"stream":false}' % ask),
        ]
