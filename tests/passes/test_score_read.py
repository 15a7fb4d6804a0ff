"""Masks of data are read as a band and a score, and computed as the model computes them; others are refused."""

import pytest
import torch

from tests.passes.scores import Data, Maker, check

INF = float("inf")
MIN = torch.finfo(torch.float32).min


def causal(d: Data) -> torch.Tensor:
    return d.j <= d.i


def keys(d: Data) -> torch.Tensor:
    return d.seen[:, None, None, :]


def additive(mask: torch.Tensor, low: float = -INF) -> torch.Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, low)


def distance(d: Data) -> torch.Tensor:
    return (d.i - d.j).clamp(0, 7)


READ: dict[str, tuple[str, Maker]] = {
    "padding": ("full | l0:k -> visible=l0", keys),
    "padding and causal": ("causal | l0:k -> visible=l0", lambda d: causal(d) & keys(d)),
    "padding or not causal, negated": ("causal | l0:k", lambda d: ~((d.j > d.i) | ~keys(d))),
    "padding of queries and keys": (
        "full | l0:q l1:k; a = logical_and.default(l0, l1) -> visible=a",
        lambda d: d.seen[:, None, :, None] & keys(d),
    ),
    "padding as numbers": ("full | l0:k -> bias=l0", lambda d: (1.0 - d.seen[:, None, None].float()) * -1e9),
    "padding added to causal": (
        "causal | l0:k -> bias=l0",
        lambda d: additive(causal(d)) + (1 - keys(d).float()) * MIN,
    ),
    "lengths": ("full | l0:k -> visible=l0", lambda d: d.j < d.lengths[:, :, None, None]),
    "lengths as keys": ("causal | l0:k -> visible=l0", lambda d: causal(d) & (d.j < d.lengths)[:, None, None]),
    "documents": (
        "causal | l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a",
        lambda d: causal(d) & (d.documents[:, None, :, None] == d.documents[:, None, None, :]),
    ),
    "documents from positions": (
        "causal | l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a",
        lambda d: causal(d) & ((d.places == 0).cumsum(1)[:, None, :, None] == (d.places == 0).cumsum(1)[:, None, None]),
    ),
    "window and documents": (
        "window(2, 0) | l0:q l1:k",
        lambda d: causal(d) & (d.i - d.j < 3) & (d.documents[:, None, :, None] == d.documents[:, None, None, :]),
    ),
    "chunks": (
        "causal | l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a",
        lambda d: causal(d) & (d.i // 4 == d.j // 4),
    ),
    "prefix": (
        "full | l0:k; a = le.Tensor(j, i); b = __or__.Tensor(a, l0) -> visible=b",
        lambda d: causal(d) | (d.j < 3),
    ),
    "prefix of each row": (
        "full | l0:k; a = le.Tensor(j, i); b =",
        lambda d: causal(d) | (d.j < d.lengths[:, None, None]),
    ),
    "dilated": (
        "causal | a = sub.Tensor(i, j); b = remainder.Scalar(a, 2)",
        lambda d: causal(d) & ((d.i - d.j) % 2 == 0),
    ),
    "global and local": ("full | ", lambda d: ((d.i - d.j).abs() < 3) | d.seen[:, None, :, None] | keys(d)),
    "triangle": ("full | l0:qk; a = sub.Tensor(j, i); b = le.Scalar(a, 0)", lambda d: d.pairs.tril()),
    "triangle of numbers": ("full | l0:qk", lambda d: torch.triu(d.bias, diagonal=-2)),
    "pairs": ("full | l0:qk -> visible=l0", lambda d: d.pairs),
    "causal pairs": ("causal | l0:qk -> visible=l0", lambda d: causal(d) & d.pairs),
    "pairs, turned": ("full | l0:qk -> visible=l0", lambda d: d.pairs.transpose(2, 3)),
    "bias of pairs": ("full | l0:qk; a = _to_copy.default(l0, dtype='float64') -> bias=a", lambda d: d.bias.double()),
    "alibi": ("causal | l0:+grad", lambda d: additive(causal(d)) + d.slopes[:, None, None] * (d.j - d.i)),
    "alibi of keys alone": ("full | l0:+grad; a = mul.Tensor(l0, j)", lambda d: d.slopes[:, None, None] * d.j[None]),
    "table": ("full | l0:table+grad; a = ", lambda d: d.table[distance(d)].permute(2, 0, 1)),
    "table by embedding": (
        "causal | l0:table+grad; a = ",
        lambda d: torch.nn.functional.embedding(distance(d), d.table).permute(2, 0, 1)[None] + additive(causal(d)),
    ),
    "table with a row that does not train": (
        "; e = detach.default(c); f = where.self(d, c, e)",
        lambda d: torch.nn.functional.embedding(distance(d), d.table, padding_idx=3).permute(2, 0, 1),
    ),
    "table by logarithms": (
        "full | l0:table+grad; a = ",
        lambda d: d.table[(1 + (d.i - d.j).abs()).float().log().clamp(max=7).long()].permute(2, 0, 1),
    ),
    "softly causal, and padding": (
        "full | l0: l1:k; a = le",
        lambda d: additive(causal(d), -1e9) + additive(keys(d), -1e9),
    ),
    "softly causal": ("causal", lambda d: additive(causal(d), -1e9)),
    "softly and hard": ("causal | l0:k -> bias=l0", lambda d: additive(causal(d)) + additive(keys(d), MIN)),
    "where of data": (
        "full | l0:k; a = le.Tensor(j, i); b = __and__.Tensor(a, l0); c = where.Scalar(b, 0.0, -inf)",
        lambda d: torch.where(causal(d) & keys(d), 0.0, -INF),
    ),
    "size of the sequence": ("full | l0:; a = add.Tensor(i, j)", lambda d: d.i + d.j < d.S),
    "rows that see nothing": ("window(, -1) | l0:q -> visible=l0", lambda d: (d.j < d.i) & d.seen[:, None, :, None]),
    "integers as truth": ("full | l0:k", lambda d: (d.documents[:, None, None] * causal(d)).bool()),
}

REFUSED: dict[str, tuple[str, Maker]] = {
    "running sum": ("aten.cumsum does not work element by element", lambda d: d.pairs.cumsum(-1) < 3),
    "rolled": ("aten.roll does not work element by element", lambda d: (d.pairs & causal(d)).roll(1, -1)),
    "joined": (
        "aten.cat does not",
        lambda d: torch.cat([(d.pairs & causal(d))[..., :2], (d.pairs & causal(d))[..., 2:]], -1),
    ),
    "turned around": ("aten.flip", lambda d: causal(d) & torch.flip(d.pairs, (-1,))),
    "one head of a table": ("aten.select does not", lambda d: d.table[distance(d)][None, ..., 0]),
    "heads in the table": (
        "the columns of the table",
        lambda d: d.table[distance(d)].permute(2, 1, 0).permute(0, 2, 1)[:, None],
    ),
    "fraction of the size": ("a fraction of a size", lambda d: d.i - d.j < d.S / 3),
    "clamped by the size": (
        "which differs from call to call",
        lambda d: (d.i - d.j).clamp(max=d.S) < 3,
    ),
    "gradient by frequency": (
        "its gradient is sparse or scaled by how often",
        lambda d: torch.nn.functional.embedding(distance(d), d.table, scale_grad_by_freq=True).permute(2, 0, 1),
    ),
    "gradient of a strange function": (
        "the gradient of",
        lambda d: torch.special.bessel_j0(d.slopes[:, None, None] * (d.j - d.i)),
    ),
}


@pytest.fixture(scope="module")
def read() -> dict[str, str]:
    return check({name: maker for name, (_, maker) in READ.items()})


@pytest.mark.parametrize("name", READ)
def test_read(name: str, read: dict[str, str]) -> None:
    assert read[name].startswith(READ[name][0]) or READ[name][0] in read[name], read[name]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    reason, maker = REFUSED[name]
    (found,) = check({name: maker}, lengths=()).values()
    assert found.startswith("refused: its mask is not known tile by tile"), found
    assert reason in found
