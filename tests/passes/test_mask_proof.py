"""Masks are proven to be the band that they are, or not at all; each proof is held against the mask itself."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sp.mask import CAUSAL, FULL, Band
from tests.passes.masks import MaskMaker, Proof, differs, prove_all

INF = float("inf")
LENGTHS = (6, 7, 11, 40)


def ones(S: int) -> Tensor:
    return torch.ones(S, S, dtype=torch.bool)


def q(S: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.arange(S, dtype=dtype)[:, None]


def k(S: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.arange(S, dtype=dtype)[None, :]


def causal(S: int) -> Tensor:
    return q(S) >= k(S)


def hidden(mask: Tensor, by: float = -INF) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, by)


# What a person may write, and what it is.
PROVEN: dict[str, tuple[Band, MaskMaker]] = {
    "tril": (CAUSAL, lambda S: ones(S).tril()),
    "tril of diagonal": (Band(None, 2), lambda S: ones(S).tril(2)),
    "triu, inverted": (CAUSAL, lambda S: ~ones(S).triu(1)),
    "triu, logical_not": (CAUSAL, lambda S: torch.logical_not(torch.triu(ones(S), diagonal=1))),
    "banded by both": (Band(3, 2), lambda S: ones(S).tril(2).triu(-3)),
    "float tril": (CAUSAL, lambda S: torch.ones(S, S).tril().bool()),
    "float tril == 1": (CAUSAL, lambda S: torch.ones(S, S).tril() == 1),
    "float tril != 0": (CAUSAL, lambda S: torch.ones(S, S).tril() != 0),
    "float tril > 0": (CAUSAL, lambda S: torch.ones(S, S).tril() > 0),
    "int8 tril": (CAUSAL, lambda S: torch.ones(S, S, dtype=torch.int8).tril().to(torch.bool)),
    "eq 0, inverted": (CAUSAL, lambda S: ~torch.ones(S, S).tril().eq(0)),
    "triu of -inf": (CAUSAL, lambda S: torch.triu(torch.full((S, S), -INF), diagonal=1)),
    "triu of finfo.min": (CAUSAL, lambda S: torch.triu(torch.full((S, S), torch.finfo(torch.float32).min), 1)),
    "triu of bf16 finfo.min": (
        CAUSAL,
        lambda S: torch.full((S, S), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16).triu(1),
    ),
    "triu of fp16 finfo.min": (
        CAUSAL,
        lambda S: torch.full((S, S), torch.finfo(torch.float16).min, dtype=torch.float16).triu(1),
    ),
    "masked_fill -inf": (CAUSAL, lambda S: hidden(causal(S))),
    "masked_fill -1e9": (CAUSAL, lambda S: hidden(causal(S), -1e9)),
    "masked_fill twice": (Band(3, 0), lambda S: hidden(causal(S)).masked_fill(k(S) < q(S) - 3, -INF)),
    "where": (CAUSAL, lambda S: torch.where(causal(S), 0.0, -INF)),
    "where of where": (Band(3, 0), lambda S: torch.where(causal(S), torch.where(q(S) - k(S) < 4, 0.0, -INF), -INF)),
    "where of bools": (CAUSAL, lambda S: torch.where(causal(S), ones(S), ~ones(S))),
    "sum of two": (Band(3, 0), lambda S: hidden(causal(S)) + hidden(q(S) - k(S) <= 3)),
    "(1 - mask) * min": (CAUSAL, lambda S: (1.0 - causal(S).float()) * torch.finfo(torch.float32).min),
    "(mask - 1) * 1e9": (CAUSAL, lambda S: (causal(S).float() - 1) * 100000),
    "rsub": (CAUSAL, lambda S: torch.rsub(causal(S).float(), 1) * -1e9),
    "arange": (CAUSAL, lambda S: torch.arange(S)[None, :] <= torch.arange(S)[:, None]),
    "arange, strictly": (Band(None, -1), lambda S: q(S) > k(S)),
    "arange, arange + 1": (CAUSAL, lambda S: k(S) < q(S) + 1),
    "arange by view": (CAUSAL, lambda S: torch.arange(S).view(1, S) <= torch.arange(S).view(S, 1)),
    "arange by expand": (CAUSAL, lambda S: torch.arange(S).expand(S, S) <= torch.arange(S).unsqueeze(1).expand(S, S)),
    "arange of a start": (CAUSAL, lambda S: torch.arange(3, S + 3)[:, None] >= torch.arange(3, S + 3)[None]),
    "arange, sliced": (Band(None, 2), lambda S: torch.arange(S + 2)[2:][:, None] >= k(S)),
    "arange, downwards": (CAUSAL, lambda S: torch.arange(S - 1, -1, -1)[:, None] <= torch.arange(S - 1, -1, -1)),
    "arange, from the end": (CAUSAL, lambda S: S - 1 - q(S) <= S - 1 - k(S)),
    "arange, negated": (CAUSAL, lambda S: -q(S) <= -k(S)),
    "arange, minus": (CAUSAL, lambda S: k(S) - q(S) <= 0),
    "arange int32": (CAUSAL, lambda S: q(S, torch.int32) >= k(S, torch.int32)),
    "arange float": (CAUSAL, lambda S: q(S, torch.float32) >= k(S, torch.float32)),
    "arange long and float": (CAUSAL, lambda S: q(S) >= k(S, torch.float64)),
    "positions gathered": (CAUSAL, lambda S: torch.arange(S)[torch.arange(S)][:, None] >= k(S)),
    "flat index": (CAUSAL, lambda S: q(S) * S + k(S) <= q(S) * S + q(S)),
    "window": (Band(3, 0), lambda S: causal(S) & (q(S) - k(S) < 4)),
    "window, multiplied": (Band(3, 0), lambda S: causal(S) * (q(S) - k(S) < 4)),
    "window by triangles": (Band(4, 0), lambda S: ones(S).tril() & ones(S).triu(-4)),
    "window by abs": (Band(3, 3), lambda S: (q(S) - k(S)).abs() < 4),
    "window by abs, at most": (Band(3, 3), lambda S: (k(S) - q(S)).abs() <= 3),
    "window by negated abs": (Band(2, 2), lambda S: -(q(S) - k(S)).abs() >= -2),
    "diagonal": (Band(0, 0), lambda S: q(S) == k(S)),
    "subdiagonal": (Band(1, -1), lambda S: q(S) == k(S) + 1),
    "eye": (Band(0, 0), lambda S: ones(S).tril() & ones(S).triu()),
    "anti-causal": (Band(0, None), lambda S: causal(S).t()),
    "anti-causal by transpose": (Band(0, None), lambda S: causal(S).transpose(-1, -2)),
    "anti-causal by permute": (Band(0, None), lambda S: causal(S).permute(1, 0)),
    "anti-causal by mT": (Band(0, None), lambda S: causal(S)[None].transpose(1, 2)[0]),
    "twice transposed": (CAUSAL, lambda S: causal(S).t().t()),
    "not not": (CAUSAL, lambda S: ~~causal(S)),
    "of Morgan": (Band(3, 0), lambda S: ~((q(S) < k(S)) | (q(S) - k(S) > 3))),
    "and true": (CAUSAL, lambda S: causal(S) & ones(S)),
    "and True": (CAUSAL, lambda S: causal(S) & True),
    "or false": (CAUSAL, lambda S: causal(S) | ~ones(S)),
    "or True": (FULL, lambda S: causal(S) | True),
    "all ones": (FULL, ones),
    "zeros": (FULL, lambda S: torch.zeros(S, S)),
    "row of zeros": (FULL, lambda S: torch.zeros(1, S)),
    "column of zeros": (FULL, lambda S: torch.zeros(S, 1)),
    "batched": (CAUSAL, lambda S: causal(S)[None, None].expand(1, 1, S, S)),
    "cloned": (CAUSAL, lambda S: causal(S).clone().contiguous()),
    "cumsum of ones": (CAUSAL, lambda S: torch.ones(S, dtype=torch.long).cumsum(0)[:, None] > k(S)),
    "diff of positions": (CAUSAL, lambda S: q(S) - 1 + torch.diff(torch.arange(S + 1))[:, None] >= k(S)),
}

# Not a band, or not for every length, or not seen to be one: each with a word of the reason.
UNPROVEN: dict[str, tuple[str, MaskMaker]] = {
    "blocks": ("aten.floor_divide", lambda S: q(S) // 4 >= k(S) // 4),
    "remainder": ("aten.remainder", lambda S: q(S) % 4 >= k(S) % 4),
    "outside of a window": ("is not a bound", lambda S: (q(S) - k(S)).abs() >= 2),
    "not equal": ("is not a bound", lambda S: q(S) != k(S)),
    "either": ("is not a bound", lambda S: (q(S) > k(S) + 2) | (q(S) < k(S))),
    "xor": ("aten.__xor__", lambda S: causal(S) ^ (q(S) > k(S) + 2)),
    "conditions compared": ("is not a bound", lambda S: causal(S) == (q(S) - k(S) < 4)),
    "prefix": ("is not a bound", lambda S: causal(S) | (k(S) < 3)),
    "first keys": ("is not a bound", lambda S: (k(S) < 3).expand(S, S)),
    "last queries": ("is not a bound", lambda S: (q(S) >= 3).expand(S, S)),
    "twice as fast": ("is not a bound", lambda S: 2 * q(S) >= k(S)),
    "even positions": ("is not a bound", lambda S: torch.arange(0, 2 * S, 2)[:, None] >= k(S)),
    "sum of positions": ("is not a bound", lambda S: q(S) + k(S) < 6),
    "half of the length": ("is not a bound", lambda S: q(S) + S // 2 >= k(S)),
    "all false": ("is not a bound", lambda S: ~ones(S)),
    "and False": ("is not a bound", lambda S: causal(S) & False),
    "all -inf": ("is not a bound", lambda S: torch.full((S, S), -INF)),
    "nan": ("no whole number", lambda S: torch.full((S, S), float("nan"))),
    "0 × inf": ("not a number", lambda S: (1 - causal(S).float()) * -INF),
    "alibi": ("adds -c0 + c1", lambda S: hidden(causal(S)) - 1.0 * (q(S) - k(S)).float()),
    "half": ("no whole number", lambda S: (q(S) - k(S)).float() < 0.5),
    "adds 5": ("adds 5", lambda S: torch.full((S, S), 5.0)),
    "adds -10000": ("adds -10000", lambda S: hidden(causal(S), -10000.0)),
    "adds inf": ("adds oo", lambda S: torch.where(causal(S), INF, 0.0)),
    "soft and strict": ("some row sees nothing", lambda S: hidden(q(S) > k(S), -1e9)),
    "soft and strict, the other way": ("some row sees nothing", lambda S: hidden(q(S) < k(S), -1e9)),
    "log": ("aten.log", lambda S: causal(S).float().log()),
    "bf16 positions": ("in bfloat16", lambda S: q(S, torch.bfloat16) >= k(S, torch.bfloat16)),
    "fp16 positions": ("in float16", lambda S: q(S).half() >= k(S).half()),
    "fp16 by promotion": ("in float16", lambda S: causal(S).half() * 0 + q(S).half() >= 1),
    "uint8 positions": ("in uint8", lambda S: q(S).to(torch.uint8) >= k(S).to(torch.uint8)),
    "int8 positions": ("in int8", lambda S: q(S, torch.int8) >= k(S, torch.int8)),
    "int32 products": ("in int32", lambda S: q(S).int() * S + k(S).int() <= q(S).int() * S + q(S).int()),
    "negative index": ("counts from the back", lambda S: torch.arange(S)[torch.arange(S) - 1][:, None] >= k(S)),
    "two prepended to diff": (
        "diff is 1 at the start",
        lambda S: q(S) + torch.diff(torch.arange(S), prepend=torch.full((2,), -1))[1:, None] > k(S),
    ),
    "running sum of a comparison": ("running sum", lambda S: causal(S).cumsum(0) > 0),
    "flipped": ("aten.flip", lambda S: causal(S).flip(0)),
    "rolled": ("aten.roll", lambda S: causal(S).roll(1, 0)),
    "drawn": ("aten.rand", lambda S: torch.rand(S, S) > 0.5),
}


@pytest.fixture(scope="module")
def proofs() -> dict[str, Proof]:
    return {
        **prove_all({name: maker for name, (_, maker) in PROVEN.items()}),
        **prove_all({name: maker for name, (_, maker) in UNPROVEN.items()}),
    }


@pytest.mark.parametrize("name", PROVEN)
def test_proven(name: str, proofs: dict[str, Proof]) -> None:
    band, maker = PROVEN[name]
    assert proofs[name].band == band, str(proofs[name])
    for length in LENGTHS:
        assert not differs(maker, band, length)


@pytest.mark.parametrize("name", UNPROVEN)
def test_unproven(name: str, proofs: dict[str, Proof]) -> None:
    reason, _ = UNPROVEN[name]
    assert proofs[name].band is None
    assert reason in proofs[name].why
    assert proofs[name].blamed


class Generator:
    """Random masks, from what people write: mostly bands, some not, some hard to see through."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pick(self, *options: Callable[[], MaskMaker]) -> MaskMaker:
        return self.random.choice(options)()

    def positions(self, make: Callable[..., Tensor]) -> MaskMaker:
        """Positions of queries or keys, [S, 1] or [1, S]."""
        offset, dtype = self.random.randint(-3, 3), self.random.choice([torch.int32, torch.float32, torch.float64])
        small = self.random.choice([torch.uint8, torch.int8, torch.bfloat16, torch.float16])
        return self.random.choice(
            [
                make,
                lambda S: make(S) + offset,
                lambda S: offset - make(S),
                lambda S: S - 1 - make(S),
                lambda S: make(S, dtype),
                lambda S: make(S).to(dtype) - offset,
                lambda S: make(S).to(small),
                lambda S: torch.arange(S)[make(S)],
                lambda S: torch.arange(-2, S)[make(S) + abs(offset)] if abs(offset) < 3 else make(S),
                lambda S: torch.arange(S)[make(S) - 1],
                lambda S: make(S) * 2 - make(S),
                lambda S: make(S) // 2,
                lambda S: make(S + 2).flatten()[1:-1].reshape(make(S).shape) + offset,
                lambda S: torch.ones(make(S).shape).cumsum(0) - 1,
            ]
        )

    def condition(self, depth: int) -> MaskMaker:
        """[S, S] of truth values."""
        if depth == 0:
            return self.pick(self.comparison, self.comparison, self.triangle, self.near)
        a, b = self.condition(depth - 1), self.condition(depth - 1)
        return self.random.choice(
            [
                lambda S: a(S) & b(S),
                lambda S: a(S) & b(S),
                lambda S: a(S) * b(S),
                lambda S: a(S) | b(S),
                lambda S: torch.logical_and(a(S), ~b(S)),
                lambda S: ~a(S),
                lambda S: a(S).t(),
                lambda S: torch.where(a(S), b(S), a(S)),
                lambda S: a(S).masked_fill(~b(S), False),
                lambda S: a(S).tril(2),
                lambda S: a(S).float().triu(-2).bool(),
                lambda S: a(S).int() + b(S).int() == 2,
                lambda S: a(S) == b(S),
                lambda S: a(S)[None].expand(1, S, S)[0],
            ]
        )

    def comparison(self) -> MaskMaker:
        a, b = self.positions(q), self.positions(k)
        relation = self.random.choice([torch.le, torch.lt, torch.ge, torch.gt, torch.eq, torch.ne])
        return lambda S: relation(a(S), b(S))

    def triangle(self) -> MaskMaker:
        cut, diagonal = self.random.choice([torch.tril, torch.triu]), self.random.randint(-3, 3)
        dtype = self.random.choice([torch.bool, torch.float32, torch.int64])
        return lambda S: cut(torch.ones(S, S, dtype=dtype), diagonal) != 0

    def near(self) -> MaskMaker:
        width, shift = self.random.randint(1, 4), self.random.randint(-1, 1)
        return lambda S: (q(S) - k(S) + shift).abs() < width

    def mask(self) -> MaskMaker:
        """What an attention takes."""
        a, b = self.condition(self.random.randint(0, 2)), self.condition(self.random.randint(0, 1))
        low = self.random.choice([-INF, -INF, -1e9, torch.finfo(torch.float32).min, -1e4])
        return self.random.choice(
            [
                a,
                a,
                lambda S: hidden(a(S), low),
                lambda S: hidden(a(S), low) + hidden(b(S), low),
                lambda S: torch.where(a(S), 0.0, low),
                lambda S: torch.where(a(S), torch.where(b(S), 0.0, low), low),
                lambda S: (1 - a(S).float()) * max(low, -1e30),
                lambda S: torch.full((S, S), low).triu(1) + hidden(b(S), low),
                lambda S: torch.full((S, S), low).tril(-2),
            ]
        )


def check_random_masks(seed: int, count: int) -> int:
    """How many of them are proven; those are what the proof says at each length."""
    generator = Generator(seed)
    makers = {f"{number}": generator.mask() for number in range(count)}
    proven = {name: proof.band for name, proof in prove_all(makers).items() if proof.band is not None}
    for name, band in proven.items():
        for length in (6, 7, 13, 300):  # in 300, 8 bits wrap around and 16 round
            assert not differs(makers[name], band, length), f"seed {seed}, mask {name} is not {band} at {length}"
    return len(proven)


def test_random_masks() -> None:
    assert check_random_masks(1, 20) > 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_random_masks(seed: int) -> None:
    check_random_masks(seed, 60)
