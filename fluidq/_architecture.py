"""A decoder's architecture as numbers: groups of like attention layers, the feed-forward part, and its parameters."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Heads:
    """Layers with a key and a value per KV head (MHA, GQA, MQA); `window` is the tokens they attend, None for all.

    `gated`: the query projection is twice as wide, for a gate on the output.
    """

    layers: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    gated: bool = False

    def parameters(self, hidden: int) -> int:
        """Parameters of one layer's projections."""
        query = self.heads * self.key_dim * (2 if self.gated else 1)
        return hidden * (query + self.kv_heads * (self.key_dim + self.value_dim) + self.heads * self.value_dim)


@dataclass(frozen=True)
class Latent:
    """Layers that keep one latent vector per token (MLA), `rank` numbers and `rope_dim` rotary ones.

    `index_layers` of them keep an index key of `index_dim` numbers too and attend the best `index_topk` tokens (DSA);
    the other layers use the choice of the last one that has a key.
    """

    layers: int
    heads: int
    rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None = None
    index_layers: int = 0
    index_dim: int = 0
    index_heads: int = 0
    index_topk: int = 0

    def parameters(self, hidden: int) -> int:
        """Parameters of one layer's projections, without the indexer's."""
        queries = self.heads * (self.nope_dim + self.rope_dim)
        query = hidden * queries if self.query_rank is None else self.query_rank * (hidden + queries)
        down, up = hidden * (self.rank + self.rope_dim), self.rank * self.heads * (self.nope_dim + self.value_dim)
        return query + down + up + self.heads * self.value_dim * hidden

    def index_parameters(self, hidden: int) -> int:
        """Parameters of one layer's indexer: queries, the key, and a weight per index head."""
        queries = self.index_heads * self.index_dim
        return (self.query_rank or hidden) * queries + hidden * (self.index_dim + self.index_heads)


@dataclass(frozen=True)
class State:
    """Layers of linear attention: a state of constant size per sequence, and the last inputs of a short convolution.

    `gate_rank` is the width of the low-rank gates of Kimi Delta Attention; None for Gated DeltaNet, whose output gate
    is as wide as its values.
    """

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: int
    gate_rank: int | None = None
    state_number: int = 4  # bytes: the state is kept in fp32
    input_number: int = 2

    @property
    def channels(self) -> int:
        """Numbers that pass the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def size(self) -> int:
        """Bytes of one layer's state per sequence."""
        state = self.value_heads * self.key_dim * self.value_dim * self.state_number
        return state + self.channels * (self.convolution - 1) * self.input_number

    def parameters(self, hidden: int) -> int:
        """Parameters of one layer's projections and convolution."""
        values = self.value_heads * self.value_dim
        both = hidden * (self.channels + values) + self.channels * self.convolution
        if self.gate_rank is None:
            return both + hidden * (values + 2 * self.value_heads)
        decay = self.gate_rank * (hidden + self.key_heads * self.key_dim)
        return both + decay + self.gate_rank * (hidden + values) + hidden * self.value_heads


Attention = Heads | Latent | State


@dataclass(frozen=True)
class FeedForward:
    """Dense and expert layers. `matrices` is 3 for a gated unit, 2 for a plain one; `shared_width` is always active."""

    matrices: int = 3
    dense_layers: int = 0
    dense_width: int = 0
    expert_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    shared_width: int = 0


class Parameters(NamedTuple):
    """Parameters of a model: `total`, those a token is multiplied by (`active`), and those of all routed experts."""

    total: int
    active: int
    routed: int


@dataclass(frozen=True)
class Architecture:
    """A decoder. `attention` holds its layers in groups of one kind each; `source` says where the figures are from.

    `mtp_layers` are the layers for multi-token prediction: not counted in anything here.
    """

    name: str
    hidden: int
    vocabulary: int
    attention: tuple[Attention, ...]
    feed_forward: FeedForward
    tied: bool = False
    mtp_layers: int = 0
    max_context: int | None = None
    source: str = ""

    @property
    def layers(self) -> int:
        """Decoder layers, those for multi-token prediction left out."""
        return sum(group.layers for group in self.attention)

    @property
    def growing_layers(self) -> int:
        """Layers whose cache grows with the context without end."""
        return sum(g.layers for g in self.attention if isinstance(g, Latent) or (isinstance(g, Heads) and not g.window))

    def parameters(self) -> Parameters:
        """Parameters counted from the matrices; norms, biases and MTP layers are left out (below 0.1 %).

        `active` leaves out the experts that a token does not meet and, where the output head is a matrix of its own,
        the input embedding: it is looked up, not multiplied. 2 * active is the FLOP per token without attention.

        >>> moe = FeedForward(expert_layers=1, experts=4, experts_per_token=1, expert_width=8)
        >>> Architecture("tiny", 16, 100, (Heads(1, 2, 2, 8, 8),), moe).parameters()
        Parameters(total=5824, active=3072, routed=1536)
        """
        ff = self.feed_forward
        attention = sum(g.layers * g.parameters(self.hidden) for g in self.attention)
        index = sum(g.index_layers * g.index_parameters(self.hidden) for g in self.attention if isinstance(g, Latent))
        unit = ff.matrices * self.hidden
        routed = ff.expert_layers * ff.experts * unit * ff.expert_width
        chosen = ff.expert_layers * ff.experts_per_token * unit * ff.expert_width
        shared = ff.expert_layers * unit * ff.shared_width
        router = ff.expert_layers * self.hidden * ff.experts
        table = self.vocabulary * self.hidden
        rest = attention + index + ff.dense_layers * unit * ff.dense_width + shared + router + table
        return Parameters(rest + routed + (0 if self.tied else table), rest + chosen, routed)
