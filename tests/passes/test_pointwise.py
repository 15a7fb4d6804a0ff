"""Pointwise ops: those that torch tags and their second names, one by one, and how their operands broadcast."""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sp.passes.rule_table import ALIASES
from sp.testing.oracle import check_rule

Overload = torch._ops.OpOverload

OPERANDS = (torch.rand(2, 8, 4), torch.rand(8, 1), torch.rand(4))  # 8: the sequence; the last has none
KINDS = (lambda x: x * 0.8 + 0.1, lambda x: (x * 10).long(), lambda x: x > 0.5)
SCALARS = {"number": (0.5, 2), "float": (0.5, 0.5), "int": (2, 2), "bool": (False, False)}
# Not a tensor, complex, or in need of an argument that has a default.
LEFT_OUT = {"equal", "clamp", "clip"}


def tagged() -> list[Overload]:
    """Every overload that torch calls pointwise, or that is another name of such, and that changes nothing in place."""
    schemas = torch._C._jit_get_all_schemas()
    names = sorted({schema.name.removeprefix("aten::") for schema in schemas if schema.name.startswith("aten::")})
    packets = [getattr(torch.ops.aten, name) for name in names if name not in LEFT_OUT]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    meant = [one for one in overloads if torch.Tag.pointwise in one.tags or _name(one) in ALIASES]
    return [one for one in meant if not one._schema.is_mutable]


def _name(overload: Overload) -> str:
    return overload._schema.name.removeprefix("aten::")


def attempts(overload: Overload, operands: Sequence[Tensor]) -> Iterator[list[Any]]:
    """Arguments that an op may accept: what has no default, tensors in shapes that broadcast."""
    wanted = [str(argument.type) for argument in overload._schema.arguments if not argument.has_default_value()]
    for kind, number in itertools.product(KINDS, (0, 1)):
        tensors = itertools.cycle(operands)
        yield [SCALARS[type_][number] if type_ in SCALARS else kind(next(tensors)) for type_ in wanted]


def accepted(overload: Overload) -> int | None:
    """The number of the first attempt that runs."""
    for number, args in enumerate(attempts(overload, OPERANDS)):
        try:
            overload(*args)
        except (RuntimeError, TypeError, NotImplementedError):
            continue
        return number
    return None


def test_aliases_are_called() -> None:
    called = {_name(one) for one in tagged() if accepted(one) is not None}
    assert called >= ALIASES


@pytest.mark.parametrize("part", range(4))
def test_tagged_ops(part: int) -> None:
    fitting = {one: number for one in tagged()[part::4] if (number := accepted(one)) is not None}

    def every_op(*operands: Tensor) -> dict[str, Any]:
        return {str(one): one(*list(attempts(one, operands))[number]) for one, number in fitting.items()}

    verdict = check_rule(every_op, OPERANDS, sequence_dim=(1, 0, None), lengths=(11,), layouts=("zigzag",))
    assert len(fitting) > 40
    for name, result in verdict.results.items():
        drawn = "refused: .*random numbers" if "rrelu" in name else r"sharded\(dim 1\)"
        assert re.match(drawn, result), f"{name}: {result}"


@pytest.mark.parametrize("call", [torch.clamp, torch.clip])
def test_clamps(call: Any) -> None:
    def every_form(x: Tensor, y: Tensor, z: Tensor) -> Any:
        return call(x, 0.2, 0.4), call(x, y), call(x, y, z), call(x, max=z), call(z, max=x)

    verdict = check_rule(every_form, OPERANDS, sequence_dim=(1, 0, None))
    assert set(verdict.results.values()) == {"sharded(dim 1)"}


SHAPES = ((2, 8, 4), (8, 4), (1, 8, 1), (8, 1), (2, 1, 4), (1,), (), (4,), (2, 1, 1))  # 8: the sequence


def dim_of_sequence(shape: tuple[int, ...]) -> int | None:
    return shape.index(8) if 8 in shape else None


PAIRS = [("a + b", first) for first in range(4)] + [
    (call, first)
    for call in ("torch.where(a > b, a, b)", "a.masked_fill(b > 0.5, 2.0)", "a.lerp(b, a)")
    for first in (0, 3)
]


@pytest.mark.parametrize(("call", "first"), PAIRS)
def test_broadcasting(call: str, first: int) -> None:
    """One operand has the sequence; the other has it, too, or has it whole on every rank, or lacks it."""
    a_shape = SHAPES[first]
    dims = [dim_of_sequence(shape) for shape in SHAPES]

    def every_pair(*operands: Tensor) -> dict[str, Tensor]:
        pairs = [*enumerate(operands), *((len(SHAPES) + n, b) for n, b in enumerate(operands[len(SHAPES) :]))]
        return {f"{n}": eval(call, {"a": operands[first], "b": b, "torch": torch}) for n, b in pairs}

    examples = [torch.rand(shape) for shape in (*SHAPES, *SHAPES)]
    whole = range(len(SHAPES), 2 * len(SHAPES))
    verdict = check_rule(every_pair, examples, sequence_dim=(*dims, *dims), whole=list(whole), lengths=(11,))
    for number, result in verdict.results.items():
        longest = max(len(a_shape), len(SHAPES[int(number) % len(SHAPES)]))
        right = longest - len(a_shape) + dim_of_sequence(a_shape)
        assert result == f"sharded(dim {right})", f"{a_shape} {SHAPES[int(number) % len(SHAPES)]}: {result}"


def test_sequence_in_different_dims_is_refused() -> None:
    verdict = check_rule(lambda x, y: x + y, (torch.rand(8), torch.rand(8, 1)), sequence_dim=(0, 0))
    assert "it builds a sequence × sequence value of shape (S, S)" in str(verdict)


def test_spans_that_do_not_meet_are_moved() -> None:
    verdict = check_rule(lambda x: x[:, 1:] * x[:, :-1], (torch.rand(2, 8),))
    assert str(verdict) == "exact: sharded(dim 1, [1:S])"


def test_a_replicated_value_meets_a_span_by_index() -> None:
    examples = (torch.rand(2, 8), torch.rand(8))
    verdict = check_rule(lambda x, y: x[:, 1:] * y[:-1], examples, sequence_dim=(1, 0), whole=[1])
    assert str(verdict) == "exact: sharded(dim 1, [1:S])"
