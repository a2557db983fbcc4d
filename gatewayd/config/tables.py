"""Configuration tables, one class for each table of ``etc/gatewayd.toml``, which is the manual.

Only values and their bounds are defined here; see ``config.load`` for their sources. Keys without a
default are optional. Nothing is silently ignored: an unknown key is an error.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gatewayd.config.models import MODEL_NAME, ModelEntry, ServedName
from gatewayd.config.routes import RouteEntry
from gatewayd.config.slo import SloTable
from gatewayd.config.strategies import (
    AdmissionTable,
    DrafterTable,
    EvictionTable,
    ExecutorTable,
    KvCodecTable,
    KvCompressionTable,
    KvTierTable,
    LogitsProcessorTable,
    ModelBackendTable,
    PreemptionTable,
    PrefixCacheTable,
    ProtocolTable,
    QuantizerTable,
    ReasoningParserTable,
    ResidencyTable,
    RouterTable,
    SchedulerTable,
    SpecControllerTable,
    StrategyTable,
    ToolParserTable,
)
from gatewayd.config.upstreams import UPSTREAM_NAME, UpstreamEntry
from gatewayd_engine.process.machine_cpus import parse_cpu_list
from gatewayd_hooks.helpers.children import is_private

ENV_PREFIX = "GATEWAYD_"
ENV_DELIMITER = "__"

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class ConfigTable(BaseModel):
    """Base of tables: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


Origin = Annotated[str, Field(pattern=r"^(\*|https?://[A-Za-z0-9._\[\]:-]+)$", max_length=300)]
"""Origin of a web page, as browsers send it: no path, no trailing slash."""


class ServerTable(ConfigTable):
    """Address and limits of the HTTP server."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65_535)
    api_key: SecretStr | None = Field(default=None, min_length=8)
    allowed_origins: list[Origin] = []
    drain_seconds: float = Field(default=30.0, ge=0, le=3600)
    body_bytes: ByteSize = Field(default=ByteSize(8 * MIB), ge=KIB, le=GIB)
    bodies_bytes: ByteSize = Field(default=ByteSize(512 * MIB), ge=KIB)
    body_seconds: Seconds = 30.0
    header_bytes: ByteSize = Field(default=ByteSize(32 * KIB), ge=KIB, le=MIB)
    header_count: int = Field(default=100, ge=10, le=10_000)
    header_seconds: Seconds = 10.0
    idle_seconds: Seconds = 60.0
    stall_seconds: Seconds = 30.0
    connections: int = Field(default=2048, ge=1, le=1_000_000)
    peer_connections: int = Field(default=1024, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _every_page_needs_a_key(self) -> Self:
        # Otherwise any web page that a user of this machine opens could send requests.
        if "*" in self.allowed_origins and self.api_key is None:
            raise ValueError("allowed_origins has '*' without an api_key: name the origins")
        return self

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.bodies_bytes < self.body_bytes:
            raise ValueError(
                f"bodies_bytes is {int(self.bodies_bytes)} and body_bytes {int(self.body_bytes)}: "
                "bodies_bytes must be at least as large"
            )
        return self


class ModelTable(ConfigTable):
    """The served model."""

    path: str | None = None
    served_name: str | None = Field(default=None, min_length=1, max_length=256)
    served_names: list[ServedName] = Field(default=[], max_length=64)
    backend: str = Field(default="auto", pattern=r"^[a-z0-9_]+$")
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_model_len: int | None = Field(default=None, ge=1)
    dummy_weights: bool = False


class EngineTable(ConfigTable):
    """Engine processes."""

    replicas: int = Field(default=1, ge=1, le=64)
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    threads: int | None = Field(default=None, ge=1, le=1024)
    cpus: str | None = Field(default=None, max_length=4096)
    page_size_tokens: int = Field(default=16, ge=1, le=128)
    kv_memory: ByteSize | None = Field(default=None, ge=MIB)
    copy_memory: ByteSize | None = Field(default=None, ge=0)
    cascade_attention: bool = False
    capture: Literal["auto", "off"] = "auto"
    cpu_kernels: Literal["auto", "torch"] = "auto"
    cpu_activations: Literal["int8", "float"] = "int8"
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    kv_pages: int | None = Field(default=None, ge=2)
    draft_memory: ByteSize | None = Field(default=None, ge=0)
    max_running: int | None = Field(default=None, ge=1, le=65_536)
    max_batch_tokens: int | None = Field(default=None, ge=1, le=1_048_576)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    fault_limit: int = Field(default=3, ge=1)
    strategy_budget_ms: float = Field(default=50.0, gt=0, le=3_600_000)
    strategy_hang_seconds: Seconds = 2.0
    load_seconds: Seconds = 600.0
    hang_seconds: Seconds = 10.0
    environment: list[str] = Field(default=[], max_length=256)

    @field_validator("cpus")
    @classmethod
    def _is_a_list_of_cpus(cls, cpus: str | None) -> str | None:
        if cpus is not None:
            try:
                parse_cpu_list(cpus)
            except ValueError as error:
                raise ValueError(f"{error}; write a list such as 0-15,32-47") from error
        return cpus

    @model_validator(mode="after")
    def _has_cpus_for_all(self) -> Self:
        if self.cpus is None:
            return self
        share = len(parse_cpu_list(self.cpus)) // self.replicas
        if share < (self.threads or 1):
            raise ValueError(
                f"cpus leaves {share} to each of {self.replicas} replicas, and each runs"
                f" {self.threads or 1} threads: list more CPUs, or lower replicas or threads"
            )
        return self

    @field_validator("environment")
    @classmethod
    def _is_no_secret_of_ours(cls, names: list[str]) -> list[str]:
        if private := [name for name in names if is_private(name)]:
            raise ValueError(f"{', '.join(private)}: the daemon's own, and never passed on")
        return names


class CatalogueTable(ConfigTable):
    """Memory of all loaded models, and when one is unloaded for another."""

    memory: ByteSize | None = Field(default=None, ge=MIB)
    device_memory: ByteSize | None = Field(default=None, ge=MIB)
    minimum_residency_seconds: float = Field(default=10.0, ge=0, le=86_400)
    patience_seconds: float = Field(default=2.0, ge=0, le=86_400)


class QueueTable(ConfigTable):
    """Limits of the request queue."""

    max_waiting_requests: int = Field(default=2048, ge=1)
    max_waiting_tokens: int = Field(default=4_000_000, ge=1)


class GuideTable(StrategyTable):
    """Structured output by schemas and grammars; ``none`` refuses requests that ask for it."""

    strategy: str = Field(default="llguidance", pattern=r"^[a-z0-9_]+$")
    compile_seconds: float = Field(default=1.0, gt=0, le=60)
    compile_memory: ByteSize = Field(default=ByteSize(512 * MIB), ge=MIB)
    processes: int = Field(default=2, ge=1, le=64)


class StoreTable(ConfigTable):
    """Location and limits of the store of files, batches and responses."""

    path: str | None = Field(default=None, min_length=1)
    bytes: ByteSize = Field(default=ByteSize(64 * GIB), ge=MIB)
    free_bytes: ByteSize = Field(default=ByteSize(512 * MIB), ge=0)
    ledger_days: float = Field(default=7.0, ge=0, le=3650)
    ledger_rows: int = Field(default=20_000, ge=1, le=100_000_000)
    usage_rows: int = Field(default=1_000_000, ge=20_000, le=1_000_000_000)


class FilesTable(ConfigTable):
    """Limits of uploaded files."""

    bytes: ByteSize = Field(default=ByteSize(512 * MIB), ge=KIB, le=1024 * GIB)


class BatchesTable(ConfigTable):
    """Limits of batches."""

    concurrency: int = Field(default=32, ge=1, le=65_536)
    open: int = Field(default=100, ge=1, le=100_000)
    lines: int = Field(default=50_000, ge=1, le=10_000_000)
    keep_days: int = Field(default=30, ge=1, le=36_500)


class ResponsesTable(ConfigTable):
    """Retention of responses, and the limit on background ones."""

    background: int = Field(default=128, ge=1, le=100_000)
    keep_days: int = Field(default=30, ge=1, le=36_500)


class PluginsTable(ConfigTable):
    """Plugins without strategies: observers of requests, and panels of the console."""

    observers: list[str] = []
    console: list[str] = []


class AdminTable(ConfigTable):
    """The admin API's socket."""

    # A path of a unix socket has at most 107 bytes on Linux.
    socket: str | None = Field(default=None, min_length=1, max_length=107)


class LogTable(ConfigTable):
    """Logging to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"


class Config(BaseSettings):
    """The whole configuration; created by ``config.load.load``."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
    )

    server: ServerTable = ServerTable()
    model: ModelTable = ModelTable()
    models: dict[Annotated[str, Field(pattern=MODEL_NAME)], ModelEntry] = {}
    upstreams: dict[Annotated[str, Field(pattern=UPSTREAM_NAME)], UpstreamEntry] = {}
    routes: dict[Annotated[str, Field(pattern=MODEL_NAME)], RouteEntry] = {}
    engine: EngineTable = EngineTable()
    queue: QueueTable = QueueTable()
    scheduler: SchedulerTable = SchedulerTable()
    prefix_cache: PrefixCacheTable = PrefixCacheTable()
    eviction: EvictionTable = EvictionTable()
    preemption: PreemptionTable = PreemptionTable()
    quantizer: QuantizerTable = QuantizerTable()
    model_backend: ModelBackendTable = ModelBackendTable()
    guide: GuideTable = GuideTable()
    drafter: DrafterTable = DrafterTable()
    spec_controller: SpecControllerTable = SpecControllerTable()
    admission: AdmissionTable = AdmissionTable()
    router: RouterTable = RouterTable()
    executor: ExecutorTable = ExecutorTable()
    catalogue: CatalogueTable = CatalogueTable()
    residency: ResidencyTable = ResidencyTable()
    tool_parser: ToolParserTable = ToolParserTable()
    reasoning_parser: ReasoningParserTable = ReasoningParserTable()
    logits_processor: LogitsProcessorTable = LogitsProcessorTable()
    kv_tier: KvTierTable = KvTierTable()
    kv_codec: KvCodecTable = KvCodecTable()
    kv_compression: KvCompressionTable = KvCompressionTable()
    protocol: ProtocolTable = ProtocolTable()
    store: StoreTable = StoreTable()
    files: FilesTable = FilesTable()
    batches: BatchesTable = BatchesTable()
    responses: ResponsesTable = ResponsesTable()
    slo: SloTable = SloTable()
    plugins: PluginsTable = PluginsTable()
    admin: AdminTable = AdminTable()
    log: LogTable = LogTable()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only constructor arguments: ``config.load`` merges sources to record origins."""
        return (init_settings,)
