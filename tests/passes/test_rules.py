"""Every placement rule is tried by the oracle: what it says is exact, or it refuses.

A row of `CALLS` is a call and, for the sequence in dim 0, 1 and 2 of its operand x, where the result has it:

    0 1 2   that dim         *   behind merged elements         [   only a span of it
    +       a partial sum    =   replicated (a mean: sum, reduced, over count)        -   refused
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sp.passes import rule_table
from sp.testing.oracle import check_rule

CALLS = {
    "linear": """
        F.linear(x, ramp(5, x.shape[-1]))                               0 1 -
        F.linear(x, ramp(5, x.shape[-1]), ramp(5))                      0 1 -
        F.linear(ramp(3, x.shape[-1]), x[0])                            - 1 -
        F.linear(ramp(3, x.shape[-1]), x[0], ramp(x.shape[1]))          - 1 -
    """,
    "matmul": """
        x @ ramp(x.shape[-1], 3)                                        0 1 -
        ramp(3, x.shape[1]) @ x                                         0 - 2
        ramp(2, 1, 3, x.shape[1]) @ x                                   1 - 3
        x @ ramp(x.shape[0], x.shape[2], 3)                             0 1 -
        x @ ramp(x.shape[-1])                                           0 1 -
        ramp(x.shape[1]) @ x                                            0 - 1
        x[0, 0] @ ramp(x.shape[2])                                      - - -
        x[0, 0] @ ramp(x.shape[2], 3)                                   - - -
    """,
    "mm": """
        torch.mm(x[0], ramp(x.shape[2], 3))                             - 0 -
        torch.mm(ramp(3, x.shape[1]), x[0])                             - - 1
    """,
    "bmm": """
        torch.bmm(x, ramp(x.shape[0], x.shape[2], 3))                   0 1 -
        torch.bmm(ramp(x.shape[0], 3, x.shape[1]), x)                   0 - 2
    """,
    "addmm": """
        torch.addmm(ramp(3), x[0], ramp(x.shape[2], 3), beta=2)         - 0 -
        torch.addmm(ramp(1), x[0], ramp(x.shape[2], 3))                 - 0 -
        torch.addmm(ramp(1), ramp(3, x.shape[1]), x[0])                 - - 1
        torch.addmm(ramp(x.shape[1], 3), x[0], ramp(x.shape[2], 3))     - - -
        torch.addmm(x[0, :, 0], ramp(3, 4), ramp(4, x.shape[1]))        - 1 -
        torch.addmm(x[0, 0], ramp(3, x.shape[1]), x[1])                 - - 1
    """,
    "view": """
        x.view(x.shape[0] * x.shape[1], -1)                             0 0* 1
        x.view(-1)                                                      0 0* 0*
        x.view(1, x.shape[0], x.shape[1], 1, x.shape[2])                1 2 4
        x.view(x.shape[0], -1, 1)                                       0 1 1*
    """,
    "_unsafe_view": """
        torch.ops.aten._unsafe_view(x, [x.shape[0], -1])                0 1 1*
    """,
    "reshape": """
        x.reshape(x.shape[0], -1)                                       0 1 1*
        x.transpose(1, 2).reshape(x.shape[0], -1)                       0 1* 1
        x.permute(2, 0, 1).reshape(-1)                                  0* 0* 0
    """,
    "flatten": """
        x.flatten()                                                     0 0* 0*
        x.flatten(0, 1)                                                 0 0* 1
        x.flatten(-2)                                                   0 1 1*
        x.flatten(1, 1)                                                 0 1 2
    """,
    "transpose": """
        x.transpose(0, 1)                                               1 0 2
        x.transpose(-1, 0)                                              2 1 0
    """,
    "mT": "x.mT                                                         0 2 1",
    "t": """
        x[0].t()                                                        - 1 0
        x[0, 0].t()                                                     - - 0
    """,
    "permute": """
        x.permute(2, 0, 1)                                              1 2 0
        x.permute(-2, -1, 0)                                            2 0 1
    """,
    "unsqueeze": """
        x.unsqueeze(0)                                                  1 2 3
        x.unsqueeze(1)                                                  0 2 3
        x.unsqueeze(2)                                                  0 1 3
        x.unsqueeze(-1)                                                 0 1 2
        x.unsqueeze(-2)                                                 0 1 3
    """,
    "squeeze": """
        x.unsqueeze(1).squeeze(1)                                       0 1 2
        x.unsqueeze(0).unsqueeze(-1).squeeze((0, -1))                   0 1 2
        x.squeeze(1)                                                    - - -
        x.unsqueeze(0).squeeze()                                        - - -
    """,
    "expand": """
        x.expand(3, *x.shape)                                           1 2 3
        x.unsqueeze(1).expand(-1, 3, -1, -1)                            0 2 3
        x.unsqueeze(-1).expand(*x.shape, 3)                             0 1 2
        x.expand(-1, -1, -1)                                            0 1 2
    """,
    "slice": """
        x[:, 1:]                                                        0 1[ 2
        x[:, :-1]                                                       0 1[ 2
        x[:, 1:-1]                                                      0 1[ 2
        x[:, 1:][:, :-1]                                                0 1[ 2
        x[:, -2:]                                                       0 1[ 2
        x[:, -3:-1]                                                     0 1[ 2
        x[:, :2]                                                        0 1[ 2
        x[:, : x.shape[1]]                                              0 1 2
        x[:, x.shape[1] - 2 :]                                          0 1[ 2
        x[:, x.shape[1] - 2 : x.shape[1] - 1]                           0 - 2
        x[..., 1:]                                                      0 1 2[
    """,
    "split": """
        x.unsqueeze(0).split([1])[0]                                    1 2 3
        x.unsqueeze(3).expand(-1, -1, -1, 4).split(2, -1)[1]            0 1 2
    """,
    "split_with_sizes": """
        torch.split_with_sizes(x, [1, x.shape[0] - 1], 0)[1]            - 1 2
    """,
    "chunk": "x.unsqueeze(-1).expand(-1, -1, -1, 4).chunk(2, -1)[1]     0 1 2",
    "unbind": """
        x[:, :1].unbind(1)[0]                                           0 - 1
        x.unsqueeze(0).unbind()[0]                                      0 1 2
        x[..., :2].unbind(-1)[1]                                        0 1 -
    """,
    "select": """
        x[0]                                                            - 0 1
        x[:, -1]                                                        0 - 1
        x.select(2, x.shape[2] - 1)                                     0 1 -
    """,
    "cat": """
        torch.cat([x, x], 1)                                            0 - 2
        torch.cat([x, 2 * x, torch.ones_like(x)], -1)                   0 1 -
        torch.cat([x, ramp(*x.shape)])                                  - 1 2
        torch.cat([ramp(*x.shape), x], 1)                               0 - 2
        torch.cat([x, x.new_ones(0)], 1)                                - - -
    """,
    "stack": """
        torch.stack([x, x])                                             1 2 3
        torch.stack([x, ramp(*x.shape)], 2)                             0 1 3
        torch.stack([x, -x], -1)                                        0 1 2
    """,
    "pad": """
        F.pad(x, (1, 2))                                                0 1 -
        F.pad(x, (0, 0, 1, 0), value=3.0)                               0 - 2
        F.pad(x, (0, 0, 0, 0, 0, 1))                                    - 1 2
        F.pad(x, (1, 1), mode="reflect")                                0 1 -
        F.pad(x, (-1, 0))                                               0 1 -
        F.pad(x, (0, 0))                                                0 1 2
    """,
    "softmax": """
        x.softmax(-1)                                                   0 1 -
        x.softmax(1)                                                    0 - 2
    """,
    "log_softmax": "x.log_softmax(0)                                    - 1 2",
    "_softmax": "torch._softmax(x, -1, False)                           0 1 -",
    "_log_softmax": "torch._log_softmax(x, 1, False)                    0 - 2",
    "cumsum": """
        x.cumsum(-1)                                                    0 1 -
        x.cumsum(1)                                                     0 - 2
    """,
    "layer_norm": """
        F.layer_norm(x, x.shape[2:], ramp(x.shape[2]), ramp(x.shape[2])) 0 1 -
        F.layer_norm(x, x.shape[1:])                                    0 - -
        F.layer_norm(ramp(*x.shape), x.shape[2:], x[0, 0])              - - -
    """,
    "rms_norm": """
        F.rms_norm(x, x.shape[2:], ramp(x.shape[2]))                    0 1 -
        F.rms_norm(x, x.shape)                                          - - -
    """,
    "sum": """
        x.sum()                                                         + + +
        x.sum(1)                                                        0 + 1
        x.sum((0, -1), keepdim=True)                                    + 1 +
        x.sum((0, 1))                                                   + + 0
        (x > 0.5).sum()                                                 + + +
        x.sum([], keepdim=True)                                         + + +
        x.sum(-2, dtype=torch.float32)                                  0 + 1
    """,
    "mean": """
        x.mean()                                                        = = =
        x.mean(1, keepdim=True)                                         0 = 2
        x.mean((0, -1))                                                 = 0 =
        x.mean(-1)                                                      0 1 =
        (x > 0.5).double().mean()                                       = = =
        x.mean([])                                                      = = =
    """,
    "embedding": """
        F.embedding((x * 4).long(), ramp(9, 3))                         0 1 2
        F.embedding((x > 0.5).to(torch.int64), ramp(9, 3), 1)           0 1 2
        F.embedding((x > 0.5).to(torch.int64), ramp(9, 3), scale_grad_by_freq=True)  - - -
        F.embedding((x > 0.5).to(torch.int64), ramp(9, 3), sparse=True) - - -
        F.embedding(torch.zeros(2, dtype=torch.int64), x[0])            - - -
    """,
    "cross_entropy_loss": """
        F.cross_entropy(x.flatten(0, 1), ids(x), reduction="sum")       + + -
        F.cross_entropy(x.flatten(0, 1), ids(x), reduction="none")      0 0* -
        F.cross_entropy(x.flatten(0, 1), ids(x))                        = = -
        F.cross_entropy(x.flatten(0, 1), ids(x), ignore_index=1)        = = -
        F.cross_entropy(x.flatten(0, 1), ids(x), label_smoothing=0.1)   = = -
        F.cross_entropy(x.flatten(0, 1), ids(x), ramp(x.shape[2]), reduction="sum") + + -
        F.cross_entropy(x, ids(x, 0, 2), reduction="sum")               - - -
        F.cross_entropy(x.flatten(0, 1), x.flatten(0, 1).softmax(1), reduction="sum") - - -
    """,
    "clone": "x.clone()                                                 0 1 2",
    "contiguous": "x.mT.contiguous()                                    0 2 1",
    "detach": "x.detach()                                               0 1 2",
    "alias": "torch.ops.aten.alias(x)                                   0 1 2",
    "to": """
        x.to(torch.float32)                                             0 1 2
        x.to(torch.ones(3))                                             0 1 2
        x.half()                                                        0 1 2
    """,
    "_to_copy": "torch.ops.aten._to_copy(x, dtype=torch.float32)        0 1 2",
    "zeros_like": "torch.zeros_like(x)                                  0 1 2",
    "ones_like": "torch.ones_like(x)                                    0 1 2",
    "full_like": "torch.full_like(x, 3, dtype=torch.int64)              0 1 2",
}
SHAPES = ([8, 2, 4], [2, 8, 4], [2, 4, 8])  # 8: the sequence, in dim 0, 1, 2


# The least regular layout at a length that 3 does not divide; the slow tests try the others.
ONCE: dict[str, Any] = {"lengths": (11,), "layouts": ("zigzag",)}


def ramp(*shape: int) -> Tensor:
    """Numbers that differ, made in the graph: replicated."""
    return (torch.arange(math.prod(shape), dtype=torch.float64) / 7).sin().reshape(shape)


def ids(x: Tensor, *dims: int) -> Tensor:
    """A class for each row of x, replicated."""
    shape = [x.shape[dim] for dim in dims or (0, 1)]
    numbers = torch.arange(math.prod(shape)) % 2
    return numbers.reshape(shape) if dims else numbers


def function(text: str) -> Any:
    return eval(f"lambda x: {text}", {"torch": torch, "F": F, "ramp": ramp, "ids": ids})


def rows(table: str, columns: int = 3) -> list[tuple[str, list[str]]]:
    lines = [line.split() for line in table.strip().splitlines()]
    return [(" ".join(line[:-columns]), line[-columns:]) for line in lines]


def code(result: str) -> str:
    """A result of the oracle as the table writes it."""
    if result.startswith("refused"):
        return "-"
    short = {"partial(sum)": "+", "replicated": "="}
    dim, _, more = result.removeprefix("sharded(dim ").partition(",")
    return short.get(result) or dim.rstrip(")") + ("*" if "outer" in more else "") + ("[" if "[" in more else "")


def test_every_op_of_the_table_is_called() -> None:
    assert set(CALLS) == set(rule_table.PATTERNS) | set(rule_table.SHAPES) | rule_table.POINTWISE


@pytest.mark.parametrize("op", CALLS)
def test_op(op: str) -> None:
    table = rows(CALLS[op])
    calls = [function(text) for text, _ in table]

    def every_dim(*xs: Tensor) -> dict[str, Any]:
        return {f"{number}.{dim}": call(x) for number, call in enumerate(calls) for dim, x in enumerate(xs)}

    verdict = check_rule(every_dim, [torch.rand(shape) for shape in SHAPES], sequence_dim=(0, 1, 2), **ONCE)
    assert verdict.results, str(verdict)
    assert f"aten.{op}" in verdict.tried
    found = [[code(verdict.results[f"{number}_{dim}"]) for dim in range(3)] for number in range(len(calls))]
    reasons = "\n".join(f"{name}: {result}" for name, result in verdict.results.items())
    assert [(text, codes) for (text, _), codes in zip(table, found, strict=True)] == table, reasons


# The same for an operand x whose dim 1 is the sequence, a span of it, or merged with 3 elements in front or behind.
FORMS = {
    "whole": lambda wide: wide[:, 0],
    "[:-1]": lambda wide: wide[:, 0, :-1],
    "[1:]": lambda wide: wide[:, 0, 1:],
    "outer": lambda wide: wide.flatten(1, 2),
    "inner": lambda wide: wide.transpose(1, 2).flatten(1, 2),
}
IN_EVERY_FORM = """                                  whole [:-1] [1:] outer inner
    x * 2                                           1   1[   1[   1*   1
    x + ramp(x.shape[1], 1)                         1   1[   1[   1*   1
    F.linear(x, ramp(3, x.shape[2]), ramp(3))       1   1[   1[   1*   1
    ramp(3, x.shape[1]) @ x                         -   -    -    -    -
    x @ ramp(x.shape[2])                            1   1[   1[   1*   1
    x.transpose(1, 2)                               2   2[   2[   2*   2
    x.flatten(0, 1)                                 0*  0*[  0*[  0*   0*
    x.flatten(1, 2)                                 1   1[   1[   1*   1
    x.reshape(-1)                                   0*  0*[  0*[  0*   0*
    x.view(x.shape[0], 1, -1, x.shape[2], 1)        2   2[   2[   2*   2
    x.unsqueeze(1)                                  2   2[   2[   2*   2
    x.expand(2, *x.shape)                           2   2[   2[   2*   2
    x[0]                                            0   0[   0[   0*   0
    x[:, 0]                                         -   -    -    -    -
    x[..., 1:]                                      1   1[   1[   1*   1
    x[:, 1:]                                        1[  1[   1[   -    -
    x.split(2, -1)[0]                               1   1[   1[   1*   1
    x.sum(1)                                        +   +    +    +    +
    x.sum(2)                                        1   1[   1[   1*   1
    x.mean()                                        =   =    =    =    =
    x.softmax(-1)                                   1   1[   1[   1*   1
    x.cumsum(1)                                     -   -    -    -    -
    F.layer_norm(x, x.shape[2:])                    1   1[   1[   1*   1
    F.embedding((x > 0.5).long(), ramp(2, 3))       1   1[   1[   1*   1
    torch.cat([x, ramp(*x.shape)], 2)               1   1[   1[   1*   1
    torch.stack([ramp(*x.shape), x], 1)             2   2[   2[   2*   2
    F.pad(x, (1, 0))                                1   1[   1[   1*   1
    F.cross_entropy(x.flatten(0, 1), ids(x))        =   =    =    =    =
    torch.where(x > 0.5, x, ramp(x.shape[1], 1))    1   1[   1[   1*   1
"""


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_operand(form: str) -> None:
    table, column = rows(IN_EVERY_FORM.split("inner\n", 1)[1], 5), list(FORMS).index(form)
    calls = [function(text) for text, _ in table]

    def every_call(wide: Tensor) -> list[Tensor]:
        x = FORMS[form](wide)
        return [call(x) for call in calls]

    verdict = check_rule(every_call, [torch.rand(2, 3, 8, 4)], sequence_dim=2, **ONCE)
    assert verdict.results, str(verdict)
    found = [(text, code(result)) for (text, _), result in zip(table, verdict.results.values(), strict=True)]
    assert found == [(text, codes[column]) for text, codes in table], str(verdict)


def test_merged_dims_come_apart_again() -> None:
    def merge_and_split(x: Tensor) -> list[Tensor]:
        return [(x.flatten(0, 1) * 2).view(x.shape), (x.flatten(1, 2) * 2).unflatten(1, (-1, 4))]

    verdict = check_rule(merge_and_split, [torch.rand(2, 8, 4)])
    assert str(verdict) == "exact: sharded(dim 1), sharded(dim 1)"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", CALLS)
def test_op_in_every_form(op: str, form: str) -> None:
    """Whatever the form: exact or refused."""
    calls = [function(text) for text, _ in rows(CALLS[op])]
    for dim in range(3):
        sizes = [2, 4]
        shape = [*sizes[:dim], 3, 8, *sizes[dim:]]

        def every_call(wide: Tensor, dim: int = dim) -> list[Tensor]:
            moved = wide.movedim((dim, dim + 1), (1, 2))
            return [call(FORMS[form](moved).movedim(1, dim)) for call in calls]

        check_rule(every_call, [torch.rand(shape)], sequence_dim=dim + 1, lengths=(11, 12, 7), world=3)
