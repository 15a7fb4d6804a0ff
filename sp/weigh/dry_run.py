"""A dry run: the graph over fake tensors of the real sizes, to see what torch itself would compute and keep.

Nothing is computed and no memory is taken, whatever the sizes.  Products are counted where they reach the dispatcher,
by torch's own formulas; kept is what autograd asks to save for backward, each storage once.  Nothing has to be known
of single ops, and ops that the graph has as one (losses, norms) keep what their parts keep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sympy
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from sp.passes.fxtools import expression, op_name, tensor
from sp.program import Program

Sizes = Mapping[sympy.Basic, int]

ATTENTION = "sp.attention"


@dataclass(frozen=True)
class Weight:
    """Of one node.  flops: of its products, forward.  kept: bytes that nobody before it has kept."""

    flops: int
    kept: int

    def __add__(self, other: Weight) -> Weight:
        return Weight(self.flops + other.flops, self.kept + other.kept)


NOTHING = Weight(0, 0)


def dry_run(program: Program, sizes: Sizes) -> dict[fx.Node, Weight]:
    """The weight of every node of a program of global shapes.  sizes: what its size symbols stand for.

    Attention that `sp` runs has no flops here, and keeps what it keeps.  Nothing is kept where gradients are off."""
    scale = _Scale(program, sizes)
    with torch.autograd.graph.saved_tensors_hooks(scale.kept.keep, lambda kept: kept):
        scale.run(*scale.inputs())
    scale.kept.known.clear()
    return scale.weights


class _Kept:
    """What autograd keeps.  It knows no graph: autograd's own, in C++, may hold it for good.

    bytes: of all storages so far.  known: storages that are there anyway, or are kept already; held, so that no other
    takes the place of one."""

    def __init__(self) -> None:
        self.bytes = 0
        self.known: dict[int, Any] = {}

    def keep(self, saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage._cdata not in self.known:
            self.known[storage._cdata] = storage
            self.bytes += storage.nbytes()
        return saved

    def there(self, value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        self.known[storage._cdata] = storage
        return value


class _Scale(fx.Interpreter):
    """Runs node by node, and notes what each has added."""

    def __init__(self, program: Program, sizes: Sizes) -> None:
        super().__init__(program.graph_module)
        self.placeholders = program.graph.find_nodes(op="placeholder")
        self.sizes, self.mode = sizes, FakeTensorMode()
        self.weights: dict[fx.Node, Weight] = {}
        self.counter = _Products()
        self.kept = _Kept()

    def inputs(self) -> list[Any]:
        return [self._filled(node) for node in self.placeholders]

    def run_node(self, n: fx.Node) -> Any:
        flops, kept = self.counter.flops, self.kept.bytes
        with self.mode, self.counter:
            result = super().run_node(n)
        self.weights[n] = Weight(0 if op_name(n) == ATTENTION else self.counter.flops - flops, self.kept.bytes - kept)
        return result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Parameters and buffers as fake tensors; each is the same whenever it is read."""
        value = self.fetch_attr(target)
        return self.kept.there(self.mode.from_tensor(value, static_shapes=True)) if isinstance(value, Tensor) else value

    def _filled(self, node: fx.Node) -> Any:
        like = tensor(node)
        if like is None:
            return node.meta["val"]
        with self.mode:
            shape = [concrete(size, self.sizes) for size in like.shape]
            made = torch.empty(shape, dtype=like.dtype, device=like.device, requires_grad=like.requires_grad)
        return self.kept.there(made)


class _Products(TorchDispatchMode):
    """Counts the floating-point operations of products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        return out


def concrete(size: object, sizes: Sizes) -> int:
    """A size of the graph as a number."""
    found = expression(size).xreplace(cast(Any, {symbol: sympy.Integer(value) for symbol, value in sizes.items()}))
    assert found.is_Integer, f"nothing says how large {found} is"
    return int(cast(sympy.Integer, found))
