"""Random programs over random leaves, for properties that every score must have."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from sp.runtime.scores.evaluate import evaluate
from sp.score import Leaf, Line, Score

WHOLE = (torch.int64, torch.int32, torch.uint8)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SPECIAL = (float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 65000.0, -3e38)
NUMBERS = (0, 1, -1, 2, 7, 64, 0.5, -3.5, float("inf"), float("-inf"), 2**40, 1e-3)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

# a, b: earlier values; t: one that is true or false, if there is one; n: a number; d: a dtype.
TEMPLATES = [
    *(f"{op}.Tensor(a, b)" for op in (*COMPARISONS, "add", "sub", "mul", "div", "rsub")),
    *(f"{op}.Scalar(a, n)" for op in (*COMPARISONS, "add", "sub", "mul", "div", "rsub", "remainder")),
    *(f"logical_{op}.default(a, b)" for op in ("and", "or", "xor")),
    *(f"bitwise_{op}.Tensor(a, b)" for op in ("and", "or", "xor")),
    *(f"{op}.default(a, b)" for op in ("minimum", "maximum", "floor_divide")),
    *(f"{op}.default(a)" for op in ("neg", "abs", "relu", "floor", "ceil", "trunc", "round", "clone", "isnan")),
    *(f"{op}.default(a)" for op in ("sqrt", "tanh", "sigmoid", "exp", "logical_not", "bitwise_not")),
    *(f"div.Tensor_mode(a, b, rounding_mode='{mode}')" for mode in ("floor", "trunc")),
    *(f"div.Scalar_mode(a, n, rounding_mode='{mode}')" for mode in ("floor", "trunc")),
    *("clamp.default(a, -3, 100)", "clamp.Tensor(a, b, b)", "full_like.default(a, 3)", "add.Tensor(a, b, alpha=3)"),
    *("_to_copy.default(a, dtype=d)", "to.dtype(a, d)", "_to_copy.default(t, dtype=d)"),
    *("where.self(t, a, b)", "where.ScalarOther(t, a, n)", "masked_fill.Scalar(a, t, n)", "where.self(t, a, a)"),
]


def random_leaf(choice: random.Random, length: int, keys: int) -> tuple[Leaf, Tensor]:
    """A leaf of any form and dtype, with integers up to the ends of theirs, and now and then nan and infinity."""
    leaf = Leaf(choice.choice(("", "q", "k", "qk", "k", "q")))
    frame = length if "q" in leaf.form else 1, keys if "k" in leaf.form else 1
    shape = (choice.choice((1, 2)), choice.choice((1, 2)), *frame)
    shape = () if not leaf.form and choice.random() < 0.5 else shape
    dtype = choice.choice((*WHOLE, *FLOATS, torch.bool))
    generator = torch.Generator().manual_seed(choice.randrange(2**30))
    if dtype == torch.bool:
        return leaf, torch.randint(0, 2, shape, generator=generator).bool()
    if dtype in WHOLE:
        most = min(choice.choice((3, 100, 2**30, 2**62)), torch.iinfo(dtype).max)
        least = choice.choice((0, -most)) if dtype.is_signed else 0
        return leaf, torch.randint(least, most, shape, generator=generator).to(dtype)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * choice.choice((1, 30, 1e5))
    if choice.random() < 0.4:
        rare = torch.rand(shape, generator=generator) < 0.05
        x = torch.where(rare, choice.choice(SPECIAL), x)
    return leaf, x.to(dtype)


def random_score(choice: random.Random, length: int, keys: int, lines: int) -> tuple[Score, list[Tensor]]:
    """`lines` lines, each of an operator that may be called on earlier values, and three leaves."""
    pairs = [random_leaf(choice, length, keys) for _ in range(3)]
    # One element of each dtype: enough to learn what may be called on what.
    ones = {"i": torch.int64, "j": torch.int64, **{f"l{index}": x.dtype for index, (_, x) in enumerate(pairs)}}
    known = {name: torch.ones((1, 1, 1, 1), dtype=dtype) for name, dtype in ones.items()}
    found: list[Line] = []
    while len(found) < lines:
        line = _line(choice, f"v{len(found)}", known)
        try:
            known = evaluate(Score(lines=(line,), visible=line.name), known, [line.name])
        except (RuntimeError, NotImplementedError):
            continue  # torch refuses such operands
        found.append(line)
    return Score(tuple(leaf for leaf, _ in pairs), tuple(found), visible=found[-1].name), [x for _, x in pairs]


def _line(choice: random.Random, name: str, known: dict[str, Tensor]) -> Line:
    names = list(known)
    truths = [other for other in names if known[other].dtype == torch.bool]
    op, _, rest = choice.choice(TEMPLATES).partition("(")
    replacements = {
        "a": choice.choice(names[-5:]),
        "b": choice.choice(names),
        "t": choice.choice(truths or names),
        "n": repr(choice.choice(NUMBERS)),
        "d": repr(str(choice.choice((*WHOLE, *FLOATS, torch.bool))).removeprefix("torch.")),
    }
    words = [word.rpartition("=") for word in rest.removesuffix(")").split(", ")]
    call = ", ".join(f"{key}{equals}{replacements.get(word, word)}" for key, equals, word in words)
    return Score.parse(f"{name} = {op}({call}) -> visible={name}").lines[0]
