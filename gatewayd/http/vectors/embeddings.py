"""``POST /v1/embeddings``."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

from gatewayd.catalogue.target import UpstreamTarget
from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import encode_json
from gatewayd.http.schema.embeddings import EmbeddingRequest
from gatewayd.http.services import Services
from gatewayd.http.vectors.pooling import PoolingInput, Vectors, normalize
from gatewayd.http.vectors.relayed import relayed_work
from gatewayd.http.vectors.routes import VectorResponse, VectorRoute
from gatewayd.pipeline.work import Work
from gatewayd.tenants.principal import Principal


class EmbeddingsRoute(VectorRoute[EmbeddingRequest]):
    """Route that embeds texts as vectors."""

    label = "/v1/embeddings"
    table = EmbeddingRequest

    def inputs(self, request: EmbeddingRequest) -> Sequence[PoolingInput]:
        """Return the inputs, given as a string, strings, token ids or lists of token ids."""
        given = request.input
        if isinstance(given, str):
            return [PoolingInput(given, "input")]
        ids = [token for token in given if isinstance(token, int)]
        if ids:
            return [PoolingInput(ids, "input")]
        texts = [one for one in given if not isinstance(one, int)]
        return [PoolingInput(one, "input", at) for at, one in enumerate(texts)]

    async def work(
        self,
        services: Services,
        request: EmbeddingRequest,
        request_id: str,
        arrival: float,
        principal: Principal,
        *,
        endpoint: str = "",
    ) -> Work:
        """Validate the dimensions and encode the texts; an upstream does both itself."""
        target = services.target
        if isinstance(target, UpstreamTarget):
            return relayed_work(
                target,
                request,
                request_id=request_id,
                endpoint=endpoint or self.label,
                arrival=arrival,
                principal=principal,
            )
        model = await services.loaded_model()
        if request.dimensions is not None and request.dimensions > model.hidden_size:
            raise InvalidRequest(
                f"dimensions is {request.dimensions}; the maximum is the model's hidden size, "
                f"{model.hidden_size}",
                param="dimensions",
            )
        return await super().work(
            services, request, request_id, arrival, principal, endpoint=endpoint
        )

    def write(self, request: EmbeddingRequest, answered: VectorResponse) -> bytes:
        """Encode the response, with each vector as numbers or base64."""
        is_base64 = request.encoding_format == "base64"
        rows = []
        vectors = answered.vectors
        if not answered.is_final:
            vectors = truncate_and_normalize(request, vectors)
        for at, vector in enumerate(vectors):
            # One at a time, because numbers take much memory as objects.
            shown = b64encode(vector.astype("<f4")).decode() if is_base64 else vector.tolist()
            row = b'{"object":"embedding","index":%d,"embedding":%b}'
            rows.append(row % (at, encode_json(shown)))
        return b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (
            b",".join(rows),
            encode_json(answered.model),
            encode_json(answered.usage),
        )


def truncate_and_normalize(request: EmbeddingRequest, vectors: Vectors) -> Vectors:
    """Truncate vectors to the requested dimensions, then normalize them unless disabled."""
    kept = vectors[:, : request.dimensions]
    return kept if request.normalize is False else normalize(kept)
