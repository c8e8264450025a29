"""What of a model lies where: the last layers and the head on a GPU, the embedding and the first layers on the
processor, so that a pass goes from one to the other once."""
from __future__ import annotations

from dataclasses import dataclass, field

from gomlx import _gomlx

CACHE = _gomlx.describe_cache()
BLOCK = CACHE["block"]                          # positions by which a cache grows
KV_BYTES = CACHE["bytes"]                       # bytes of a value, by kv_dtype


@dataclass(frozen=True)
class Layer:
    """What a layer keeps of a sequence."""
    n_kv_heads: int = 0
    head_dim: int = 0
    window: int = 0                             # positions that it sees; 0: all
    shared: bool = False                        # uses an earlier layer's keys and values
    state_bytes: int = 0                        # of a recurrent layer's state, whatever the length

    def bytes(self, context: int, kv_dtype: str, pass_rows: int) -> int:
        """pass_rows: rows of one pass at most, which a cache with a window has beside those that the next row sees."""
        if self.shared:
            return 0
        rows = -(-context // BLOCK) * BLOCK
        if self.window:                         # chunks begin with a block; in a session that goes on, one block more
            rows = min(rows, -(-(self.window + CACHE["window_margin"]) // BLOCK) * BLOCK + pass_rows)
        return CACHE["states"] * self.state_bytes + int(rows * 2 * self.n_kv_heads * self.head_dim * KV_BYTES[kv_dtype])


def layers_of(known: dict) -> list[Layer]:
    """What each layer of a described model keeps of a sequence."""
    return [Layer(state_bytes=one["state_bytes"]) if one["kind"] == "linear" else
            Layer(one["n_kv_heads"], one["head_dim"], one["window"], one["shared"]) for one in known["layers"]]


@dataclass(frozen=True)
class Share:
    """What is in one place."""
    weight_bytes: int = 0
    working_bytes: int = 0
    layers: list[Layer] = field(default_factory=list)
    pass_rows: int = CACHE["pass_rows"]

    def sequence(self, tokens: int, kv_dtype: str) -> int:
        """Bytes of a full sequence's cache."""
        return sum(layer.bytes(tokens, kv_dtype, self.pass_rows) for layer in self.layers)

    def total(self, tokens: int, kv_dtype: str, batch: int) -> int:
        return self.weight_bytes + self.working_bytes + batch * self.sequence(tokens, kv_dtype)


def possible(known: dict) -> list[int]:
    """How many layers a GPU can have of a described model, in order: a layer is where that is whose keys it reads."""
    sources = [layer.get("source", i) for i, layer in enumerate(known["layers"])]
    n = len(sources)
    return [count for count in range(1, n + 1) if min(sources[n - count:]) >= n - count]


def divide(known: dict, count: int) -> tuple[Share, Share]:
    """(the processor's share, that of a GPU with the last `count` layers). A head that is the embedding is in both."""
    layers, working = layers_of(known), known["working_bytes"]
    here = len(layers) - count
    whole = Share(known["weight_bytes"], working, layers)
    if count == 0:
        return whole, Share()
    if here == 0:
        return Share(), Share(known["weight_bytes"], known["device_working_bytes"], layers, CACHE["device_pass_rows"])
    packed = [layer["packed_bytes"] for layer in known["layers"]]
    return (Share(known["before_layers_bytes"] + sum(packed[:here]), working, layers[:here]),
            Share(known["after_layers_bytes"] + sum(packed[here:]), working, layers[here:]))


def said(count: int, n_layers: int) -> dict[str, str]:
    """In words, what is on the processor and what on the GPU where both have layers."""
    here = n_layers - count
    first, last = (f"layer {a}" if a == b else f"layers {a} to {b}" for a, b in ((0, here - 1), (here, n_layers - 1)))
    return {"cpu": f"the embedding and {first}", "gpu": f"{last}, the final norm and the head"}
