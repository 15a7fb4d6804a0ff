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

from sp.passes.fxtools import describe, op_name, tensor_operands
from sp.passes.rules import Ruling
from sp.program import Placement, Sharded
from sp.testing.cutting import Spread

# Views of what is not contiguous; `localize` does the same.
_VIEWS = frozenset({"aten.view", "aten._unsafe_view"})
# Not one op on one rank: the ring has tests of its own.
_UNTRIED = frozenset({"sp.attention"})

_RTOL, _ATOL = 1e-9, 1e-11


class WrongRuleError(AssertionError):
    """A placement rule claims what is not so."""


def run_whole(module: fx.GraphModule, inputs: Sequence[Tensor]) -> dict[fx.Node, Any]:
    """The value of every node, on one device."""
    values: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            values[n] = super().run_node(n)
            return values[n]

    with torch.no_grad():
        Recorder(module).run(*inputs)
    return values


def try_ruling(node: fx.Node, ruling: Ruling, values: Mapping[fx.Node, Any], spread: Spread) -> None:
    """Raises WrongRuleError when the ruling is not true of these values."""
    if node.target is operator.getitem or op_name(node) in _UNTRIED:
        return
    try:
        _Trial(node, ruling, values, spread).run()
    except (AssertionError, RuntimeError, IndexError, ValueError) as error:
        needs = ", ".join(f"{operand} {need}" for operand, need in ruling.operands.items())
        claim = f"{describe(node)}\n  claim: {needs} → {ruling.output}\n  tried: {spread}, {spread.symbols}"
        raise WrongRuleError(f"{claim}\n  found: {error}") from error


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
        whole, cotangents, right = self._whole(operands)
        ranks = [self._rank(rank, operands, cotangents) for rank in range(self.spread.world)]
        for number, value in enumerate(whole):
            self._compare(f"result {number}", [results[number] for results, _ in ranks], value, self.ruling.output)
        for operand, gradient in right.items():
            need = self.ruling.operands[operand]
            parts = [gradients[operand] for _, gradients in ranks]
            self._compare(f"the gradient of {operand}", parts, gradient, need)

    def _whole(self, operands: Mapping[fx.Node, Tensor]) -> tuple[list[Tensor], list[Tensor], dict[fx.Node, Tensor]]:
        """Results, random cotangents and the operands' gradients on one device."""
        leaves = _leaves(operands)
        results = _tensors(self._call(self.node.target, self.node.args, leaves))
        cotangents = [torch.rand_like(one) if one.is_floating_point() else one for one in results]
        return results, cotangents, _gradients(leaves, results, cotangents)

    def _rank(
        self, rank: int, operands: Mapping[fx.Node, Tensor], cotangents: Sequence[Tensor]
    ) -> tuple[list[Tensor], dict[fx.Node, Tensor]]:
        """Results and gradients of one rank, which has its parts of operands and cotangents."""
        needs, output = self.ruling.operands, self.ruling.output
        leaves = _leaves({operand: self.spread.cut(value, needs[operand], rank) for operand, value in operands.items()})
        results = self._local(rank, leaves)
        return results, _gradients(leaves, results, [self.spread.cut(one, output, rank) for one in cotangents])

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
        """Shards are joined; everything else (partial results, gradients of replicated values) is summed."""
        if isinstance(placement, Sharded):
            found = self.spread.join(parts, placement, self.spread.inner(right, placement))
        else:
            found = torch.stack(list(parts)).sum(0).to(right.dtype)
        torch.testing.assert_close(found, right, rtol=_RTOL, atol=_ATOL, equal_nan=True, msg=lambda text: f"{what}: {text}")


def _leaves(operands: Mapping[fx.Node, Tensor]) -> dict[fx.Node, Tensor]:
    """Fresh leaves that collect gradients."""
    return {node: x.detach().clone().requires_grad_(x.is_floating_point()) for node, x in operands.items()}


def _tensors(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else [one for one in results if isinstance(one, Tensor)]


def _gradients(
    leaves: Mapping[fx.Node, Tensor], results: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> dict[fx.Node, Tensor]:
    """Of every floating operand; zero where it is not used."""
    floating = {node: leaf for node, leaf in leaves.items() if leaf.is_floating_point()}
    pairs = [(one, grad) for one, grad in zip(results, cotangents, strict=True) if one.requires_grad]
    if not pairs or not floating:
        return {node: torch.zeros_like(leaf) for node, leaf in floating.items()}
    outputs, grads = zip(*pairs, strict=True)
    inputs = list(floating.values())
    found = torch.autograd.grad(outputs, inputs, grads, allow_unused=True, materialize_grads=True)
    return dict(zip(floating, found, strict=True))
