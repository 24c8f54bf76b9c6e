"""The sizes of a dense decoder as MaxText has it: variables and how they are sharded, and the FLOPs of a step."""

import math
from dataclasses import dataclass

Axes = tuple[str | None, ...]


@dataclass(frozen=True)
class Decoder:
    """A row's model and step: what MaxText's config says of it.

    gated     whether the feed-forward has a gate (SwiGLU), or ReLU
    parallel  whether attention and feed-forward read the same normalised input
    tied      whether the head is the table of embeddings
    remat     what is kept for the backward pass, see decoder_step.KEPT
    batch     records of each device
    weights   type of the variables and of their moments
    """

    width: int
    layers: int
    heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    batch: int
    length: int
    mesh: dict[str, int]
    kv_heads: int | None = None
    gated: bool = True
    parallel: bool = False
    tied: bool = False
    remat: str = "full"
    block: int = 512
    weights: str = "float32"

    @property
    def kv(self) -> int:
        """Heads of key and value."""
        return self.kv_heads or self.heads

    def shapes(self) -> dict[str, tuple[tuple[int, ...], Axes]]:
        """Return of each variable the shape and the axes that shard it; those of layers have all layers in front."""
        width, n = self.width, self.layers
        inward, outward = (None, "fsdp", "tensor"), (None, "tensor", "fsdp")
        found = {
            "query": ((n, width, self.heads * self.head_dim), inward),
            "key": ((n, width, self.kv * self.head_dim), inward),
            "value": ((n, width, self.kv * self.head_dim), inward),
            "out": ((n, self.heads * self.head_dim, width), outward),
            "mlp_in": ((n, width, self.mlp), inward),
            "mlp_out": ((n, self.mlp, width), outward),
            "norm": ((n, width), (None, None)),
            "embeddings": ((self.vocabulary, width), ("tensor", "fsdp")),
            "last_norm": ((width,), (None,)),
        }
        if self.gated:
            found["mlp_gate"] = found["mlp_in"]
        if not self.parallel:
            found["mlp_norm"] = found["norm"]
        if not self.tied:
            found["head"] = ((width, self.vocabulary), ("fsdp", "tensor"))
        return found

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for shape, _ in self.shapes().values())

    @property
    def model_flops(self) -> float:
        """FLOPs of a step and device, as MaxText counts them: 6 per parameter and token, and causal attention."""
        attention = 12 * self.heads * self.head_dim * self.layers * self.length**2 * self.batch / 2
        return 6.0 * self.parameters * self.length * self.batch + attention
