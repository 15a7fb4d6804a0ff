"""A workload: what one training step has to do at one length, before anybody deals it.  Numbers only.

A ModelShape makes one from a few sizes (`ModelShape.workload`), a captured model from its own graph (`sp.weigh`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sp.mask import Band


@dataclass(frozen=True)
class AttentionShape:
    """What one token brings to one attention.  item_bytes: of one number of q, k and v.

    >>> shape = sp.costs.AttentionShape(heads=32, kv_heads=8, head_width=128, value_width=128, item_bytes=2)
    >>> shape.pair_flops, shape.kv_width, shape.sum_bytes
    (16384, 2048, 4)
    """

    heads: int
    kv_heads: int
    head_width: int
    value_width: int
    item_bytes: int

    @property
    def pair_flops(self) -> int:
        """Of one pair of query and key, all heads, forward: q·k and p·v.  Backward: 2.5 times as many."""
        return 2 * self.heads * (self.head_width + self.value_width)

    @property
    def sum_bytes(self) -> int:
        """Of one number of a sum over tiles."""
        return max(self.item_bytes, 4)

    @property
    def kv_width(self) -> int:
        """Numbers of the key and the value of one token."""
        return self.kv_heads * (self.head_width + self.value_width)


@dataclass(frozen=True)
class Attending:
    """Attentions that are alike.  count: how many.  batch: sequences of each.  mask: what is known of it beforehand.
    queries, keys: how many, in the whole sequences.  shared: every rank has all queries (they have no sequence).

        >>> (attending,) = llama.workload(65_536).attentions
        >>> isinstance(attending, sp.costs.Attending), attending.count, str(attending.mask)
        (True, 32, 'causal')
    """

    shape: AttentionShape
    mask: Band
    queries: int
    keys: int
    count: int
    batch: int = 1
    shared: bool = False


@dataclass(frozen=True)
class Workload:
    """One step on one batch.

        >>> work = llama.workload(65_536)
        >>> isinstance(work, sp.costs.Workload), work.batch, work.parameters
        (True, 1, 8029995008)

    What is counted per token is counted for one position of all sequences of the batch.

    name: of the model, for people.  length: tokens of a sequence.  trains: whether there is a backward.
    token_flops: of everything but attention, forward.  shared_flops: those that every rank computes.
    repeats: how often the time of forward a whole step takes there: 3, 4 where backward computes forward again.
    token_bytes, shared_bytes: of activations that backward needs.
    state_bytes: of parameters, buffers and gradients, on every rank.  parameters: how many; block_bytes: of those of
    the largest block; both only where sizes tell (`ModelShape`).
    output_bytes: per token, of outputs that are gathered."""

    name: str
    length: int
    attentions: tuple[Attending, ...]
    token_flops: float
    token_bytes: float
    state_bytes: float
    trains: bool = True
    repeats: int = 3
    shared_flops: float = 0.0
    shared_bytes: float = 0.0
    output_bytes: float = 0.0
    parameters: int = 0
    block_bytes: float = 0.0

    @property
    def batch(self) -> int:
        """Sequences that are attended to at once."""
        return max((each.batch for each in self.attentions), default=1)
