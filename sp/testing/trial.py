"""One trial of one ruling: an op on every rank's part of its operands against the same op on one device."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sympy
import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from sp.passes.attention import AXIS
from sp.passes.fxtools import describe, op_name, tensor_operands
from sp.passes.rules import TRAVELS, Ruling
from sp.program import Partial, Placement, Sharded
from sp.testing.cutting import Spread

# Views of what is not contiguous; `localize` does the same.
_VIEWS = frozenset({"aten.view", "aten._unsafe_view"})
# Not one op on one rank: the ring has tests of its own.  Memory that nobody has written has no values to compare.
_ELSEWHERE = TRAVELS | {"noise"}  # what `sp.passes.lowering` makes of them is tried on worlds of threads
_UNTRIED = frozenset({"sp.attention", "aten.empty_like"})

# What a model computes in 32 bits is compared as such.
_TOLERANCES = {
    **dict.fromkeys((torch.float64, torch.complex128), (1e-9, 1e-11)),
    **dict.fromkeys((torch.float32, torch.complex64), (1e-4, 1e-5)),
}


class WrongRuleError(AssertionError):
    """A placement rule claims what is not so.

    >>> try:
    ...     verdict = sp.testing.check_rule(nn.Linear(4, 4), (torch.ones(1, 8, 4),))
    ... except sp.testing.WrongRuleError as error:
    ...     print("sp has a bug:", error)
    """


def run_whole(module: fx.GraphModule, inputs: Sequence[Tensor]) -> dict[fx.Node, Any]:
    """The value of every node, on one device."""
    values: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            values[n] = super().run_node(n)
            return values[n]

        def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            ours = isinstance(target, torch._ops.OpOverload) and target.namespace == "sp"
            alone = tuple("" if ours and isinstance(arg, str) and arg == AXIS else arg for arg in args)
            return super().call_function(target, alone, kwargs)

    with torch.no_grad():
        Recorder(module).run(*inputs)
    return values


def try_ruling(node: fx.Node, ruling: Ruling, values: Mapping[fx.Node, Any], spread: Spread) -> bool:
    """Whether it was tried.  Raises WrongRuleError when the ruling is not true of these values."""
    if node.target is operator.getitem or op_name(node) in _UNTRIED or ruling.lowering in _ELSEWHERE:
        return False
    try:
        _Trial(node, ruling, values, spread).run()
    except (AssertionError, RuntimeError, IndexError, ValueError) as error:
        needs = ", ".join(f"{operand} {need}" for operand, need in ruling.operands.items())
        claim = f"{describe(node)}\n  claim: {needs} → {ruling.output}\n  tried: {spread}, {spread.symbols}"
        raise WrongRuleError(f"{claim}\n  found: {error}") from error
    return True


@dataclass
class _Trial:
    node: fx.Node
    ruling: Ruling
    values: Mapping[fx.Node, Any]
    spread: Spread

    def run(self) -> None:
        operands = {operand: self.values[operand] for operand in tensor_operands(self.node)}
        missing = [operand for operand in operands if operand not in self.ruling.operands]
        assert not missing, f"the ruling does not say what {missing} must be"
        whole = self._whole(operands)
        cotangents = [torch.rand_like(one) if _is_differentiable(one) else one for one in whole.results]
        right = whole.gradients(cotangents)
        ranks = [self._rank(rank, operands, list(whole.leaves)) for rank in range(self.spread.world)]
        for number, value in enumerate(whole.results):
            self._compare(f"result {number}", [one.results[number] for one in ranks], value, self.ruling.output)
        cut = [[self.spread.cut(one, self.ruling.output, rank) for one in cotangents] for rank in range(len(ranks))]
        gradients = [one.gradients(mine) for one, mine in zip(ranks, cut, strict=True)]
        for operand, gradient in right.items():
            parts = [one[operand] for one in gradients]
            self._compare(f"the gradient of {operand}", parts, gradient, self.ruling.operands[operand])

    def _whole(self, operands: Mapping[fx.Node, Tensor]) -> _Run:
        """On one device, with gradients of all operands or, where the op has none of some, of the sharded ones."""
        floating = [operand for operand, value in operands.items() if _is_differentiable(value)]
        sharded = [operand for operand in floating if isinstance(self.ruling.operands[operand], Sharded)]
        for wanted in (floating, sharded):
            values, leaves = _leaves(operands, wanted)
            try:
                run = _Run(leaves, _tensors(self._call(self.node.target, self.node.args, values)))
                run.gradients([torch.ones_like(one) for one in run.results])
            except RuntimeError as error:
                if not any(text in str(error) for text in ("not implemented", "not differentiable")):
                    raise
            else:
                return run
        values, leaves = _leaves(operands, [])
        return _Run(leaves, _tensors(self._call(self.node.target, self.node.args, values)))

    def _rank(self, rank: int, operands: Mapping[fx.Node, Tensor], wanted: Sequence[fx.Node]) -> _Run:
        """One rank, which has its parts of the operands."""
        needs = self.ruling.operands
        parts = {operand: self.spread.cut(value, needs[operand], rank) for operand, value in operands.items()}
        values, leaves = _leaves(parts, wanted)
        return _Run(leaves, self._local(rank, values))

    def _local(self, rank: int, leaves: Mapping[fx.Node, Tensor]) -> list[Tensor]:
        name, output = op_name(self.node), self.ruling.output
        source = cast(fx.Node, self.node.args[0])
        before = self.ruling.operands.get(source) if isinstance(source, fx.Node) else None
        if name == "aten.slice" and isinstance(before, Sharded) and isinstance(output, Sharded) and before != output:
            inner = self.spread.inner(self.values[source], before)
            return [self.spread.narrow(leaves[source], before, output, rank, inner)]
        target = torch.ops.aten.reshape.default if name in _VIEWS else self.node.target
        args = [self._lowered(self.ruling.arguments.get(place, old)) for place, old in enumerate(self.node.args)]
        return _tensors(self._call(target, tuple(args), leaves))

    def _lowered(self, argument: Any) -> Any:
        if isinstance(argument, list):
            return [self._lowered(one) for one in cast(list[Any], argument)]
        return self.spread.number(argument) if isinstance(argument, sympy.Expr) else argument

    def _call(self, target: Any, args: tuple[Any, ...], leaves: Mapping[fx.Node, Tensor]) -> Any:
        def value(node: fx.Node) -> Any:
            return leaves[node] if node in leaves else self.values[node]

        return target(*map_arg(args, value), **map_arg(self.node.kwargs, value))

    def _compare(self, what: str, parts: Sequence[Tensor], right: Tensor, placement: Placement) -> None:
        """Shards are joined; all else (partial results, gradients of replicated values) is summed, or is a maximum."""
        if isinstance(placement, Sharded):
            found = self.spread.join(parts, placement, self.spread.inner(right, placement))
        elif isinstance(placement, Partial) and placement.op != "sum":
            stacked = torch.stack(list(parts))
            found = stacked.amax(0) if placement.op == "max" else stacked.amin(0)
        else:
            found = torch.stack(list(parts)).sum(0).to(right.dtype)
        rtol, atol = _TOLERANCES.get(right.dtype, (1e-2, 1e-2) if right.is_floating_point() else (0.0, 0.0))
        torch.testing.assert_close(
            found, right, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"{what}: {text}"
        )


@dataclass
class _Run:
    """The results of an op and the operands whose gradients are wanted."""

    leaves: Mapping[fx.Node, Tensor]
    results: Sequence[Tensor]

    def gradients(self, cotangents: Sequence[Tensor]) -> dict[fx.Node, Tensor]:
        """Of every leaf; zero where it is not used."""
        pairs = [(one, grad) for one, grad in zip(self.results, cotangents, strict=True) if one.requires_grad]
        if not pairs:
            return {node: torch.zeros_like(leaf) for node, leaf in self.leaves.items()}
        outputs, grads = zip(*pairs, strict=True)
        inputs = list(self.leaves.values())
        options = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
        return dict(zip(self.leaves, torch.autograd.grad(outputs, inputs, grads, **options), strict=True))


def _is_differentiable(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _leaves(
    operands: Mapping[fx.Node, Tensor], wanted: Sequence[fx.Node]
) -> tuple[dict[fx.Node, Tensor], dict[fx.Node, Tensor]]:
    """All operands as fresh leaves, and those of them that collect gradients."""
    fresh = {node: value.detach().clone().requires_grad_(node in wanted) for node, value in operands.items()}
    return fresh, {node: fresh[node] for node in wanted}


def _tensors(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else [one for one in results if isinstance(one, Tensor)]
