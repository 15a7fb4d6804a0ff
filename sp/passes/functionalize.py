"""Functionalize: every change in place → a new value, and later lines read that.

    zeros = aten.new_zeros(ids, [B, S])                 zeros = aten.new_zeros(ids, [B, S])
    view  = aten.slice(zeros, 1, 1, END)                slice_1 = aten.slice(zeros, 1, 0, 1)
    copy_ = aten.copy_(view, shifted)               →   cat   = aten.cat([slice_1, shifted], 1)
    add   = aten.add(zeros, 1)                          add   = aten.add(cat, 1)

From here on a node's value is what its own line says.  torch's own (`run_decompositions({})`) is a second trace, loses
`no_grad` (the gradients of such a region come out wrong), the source lines of regions, and what dropout was; so this
pass rewrites the lines that are concerned and no others.

What belongs to the caller or the model (inputs, parameters, buffers) may not be changed: every rank would have to be
told.  Nor may a value change under `no_grad` behind autograd's back.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_arg

from sp.errors import Refusal
from sp.passes.aliases import Lenses, NoLensError, changes_in_place, is_same, parent_of, storages
from sp.passes.functional_forms import OUT_OF_PLACE, Forms, RefusedChangeError
from sp.passes.fxtools import attribute, op_name, refusal, tensor
from sp.passes.modes import without_autocast
from sp.passes.no_grad import Gradients, quiet
from sp.passes.sizes import Sizes
from sp.program import Program

aten = torch.ops.aten


@dataclass(frozen=True)
class Functionalize:
    name: str = "functionalize"

    def run(self, program: Program) -> Program:
        changes = [node for node in program.graph.nodes if changes_in_place(node)]
        if not changes:
            return program.note(self.name, "no change in place")
        rewriter = _Rewriter(program, changes)
        for node in list(program.graph.nodes):
            rewriter.visit(node)
        for node in reversed(changes):
            if node.name not in rewriter.refused:
                program.graph.erase_node(node)
        text = f"{len(changes) - len(rewriter.refused)} changes in place made new values"
        return program.refuse(rewriter.refused).note(self.name, text)

    def check(self, program: Program) -> None:
        left = [node for node in program.graph.nodes if changes_in_place(node) and node.name not in program.refused]
        if left:
            raise AssertionError(f"functionalize left {left}")


class _Rewriter:
    """Walks the graph in order.  versions: how often the memory of a root has changed.  now: what stands for a value,
    and as of which version of its root.  split_at: all versions when an op gave several results, of several roots."""

    def __init__(self, program: Program, changes: list[fx.Node]) -> None:
        self.graph = program.graph
        self.parents: dict[fx.Node, fx.Node] = {}
        self.roots: dict[fx.Node, fx.Node] = {}
        for node in program.graph.nodes:
            parent = parent_of(node)
            if parent is not None:
                self.parents[node] = parent
            self.roots[node] = node if parent is None else self.roots[parent]
        self.changes = set(changes)
        targets = [node.args[0] for node in changes if node.args and isinstance(node.args[0], fx.Node)]
        self.versions = {self.roots[node]: 0 for node in targets}
        self.now: dict[fx.Node, tuple[int, fx.Node]] = {}
        self.split_at: dict[fx.Node, Mapping[fx.Node, int]] = {}
        self.shared = _shared_by_strangers(self.roots)
        self.refused: dict[str, Refusal] = {}
        self.gradients = Gradients(stop_at_quiet=True)
        same = frozenset(node for node in program.graph.nodes if is_same(node))
        sizes = Sizes(program)
        self.lenses, self.forms = Lenses(self._emit, sizes, same), Forms(self._emit, self.read, sizes)
        self.source: fx.Node | None = None
        values: list[Any] = [value for node in program.graph.nodes if (value := tensor(node)) is not None]
        self.tracing = values[0].fake_mode

    def visit(self, node: fx.Node) -> None:
        self.source = node
        if node in self.changes:
            self._change(node)
            return
        for operand in node.all_input_nodes:
            try:
                with self.graph.inserting_before(node):
                    current = self.read(operand)
            except NoLensError as error:
                why = f"it reads {operand.name}, whose memory was changed in place, through {error}"
                self.refused[node.name] = refusal(node, why, OUT_OF_PLACE)
                continue
            if current is not operand:
                node.replace_input_with(operand, current)
                if node.target is aten.view.default:
                    node.target = aten.reshape.default  # the new value may lie differently in memory
        root = self.roots[node]
        if tensor(node) is None:
            self.split_at[node] = dict(self.versions)
        elif root in self.versions:
            # A part of a split is as old as the split.
            split = node.args[0] if node.target is operator.getitem else None
            versions = self.versions if split is None else self.split_at.get(cast(fx.Node, split), self.versions)
            self.now[node] = (versions[root], node)
        self.gradients(node)

    def read(self, node: fx.Node) -> fx.Node:
        """What a value is now."""
        if self.roots[node] not in self.versions or tensor(node) is None:
            return node
        if node in self.changes:
            return self.read(self.parents[node])
        version, value = self.now[node]
        if version != self.versions[self.roots[node]]:
            whole = self.read(self.parents[node])
            outer, self.source = self.source, node
            value = self.lenses.read(node, whole)
            self.source = outer
            self._set(node, value)
        return value

    def _set(self, node: fx.Node, value: fx.Node) -> None:
        self.now[node] = (self.versions[self.roots[node]], value)

    def _change(self, node: fx.Node) -> None:
        try:
            target = self._target(node)
            with self.graph.inserting_before(node):
                value, scalar = self.forms.value(node, self.read(target))
                self._write(target, value, scalar)
        except NoLensError as error:
            self.refused[node.name] = refusal(node, f"it changes a value in place, through {error}", OUT_OF_PLACE)
        except RefusedChangeError as error:
            self.refused[node.name] = refusal(node, error.why, error.remedy)

    def _target(self, node: fx.Node) -> fx.Node:
        """The value that an op changes; raises RefusedChangeError if it may not."""
        schema: Any = cast(Any, node.target)._schema
        written = [one for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write]
        target = node.args[0] if node.args else None
        if len(written) != 1 or not op_name(node).endswith("_") or tensor(target) is None:
            raise RefusedChangeError("it writes into an argument", "use what it returns, without out=")
        target = cast(fx.Node, target)
        root = self.roots[target]
        if root.op == "placeholder":
            raise RefusedChangeError(f"it changes the caller's tensor {root.target!r} in place", "clone it first")
        if root.op == "get_attr":
            kind = "parameter" if isinstance(attribute(root), torch.nn.Parameter) else "buffer"
            name = str(root.target).removeprefix("model.")
            remedy = "keep counters and running statistics outside of the forward, or call eval()"
            raise RefusedChangeError(f"it changes the {kind} {name!r} in place", remedy)
        if root in self.shared:
            raise RefusedChangeError(
                "it changes memory that other values share in ways unknown to sp", "clone it first"
            )
        self._check_gradients(node, target)
        return target

    def _check_gradients(self, node: fx.Node, target: fx.Node) -> None:
        """Autograd does not see a change under no_grad, nor one of a detached alias."""
        hidden, view = quiet(node), target
        while view in self.parents:
            hidden = hidden or view.target is aten.detach.default
            view = self.parents[view]
        if hidden and self.gradients(self.read(self.roots[target])):
            why = "it changes a value behind autograd's back (under no_grad, or through detach)"
            raise RefusedChangeError(why, "change a clone of it")

    def _write(self, target: fx.Node, value: fx.Node, scalar: fx.Node | None) -> None:
        """Write back, view by view, to the memory's root."""
        written, view = [(target, value)], target
        while view in self.parents:
            parent = self.parents[view]
            value = self.lenses.write(view, self.read(parent), value, scalar)
            scalar = scalar if view in self.lenses.same else None
            view = parent
            written.append((view, value))
        self.versions[view] += 1
        for node, now in written:
            self._set(node, now)

    def _emit(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> fx.Node:
        """A new node in the place of the one that is visited."""
        assert self.source is not None
        made = self.graph.call_function(target, args, dict(kwargs or {}))
        made.meta = {
            key: self.source.meta[key]
            for key in ("stack_trace", "nn_module_stack", "custom")
            if key in self.source.meta
        }
        values, named = map_arg((made.args, made.kwargs), _traced)
        with self.tracing, torch.no_grad(), without_autocast():
            made.meta["val"] = target(*values, **named)
        self.roots[made] = made
        self.gradients(made)
        return made


def _shared_by_strangers(roots: Mapping[fx.Node, fx.Node]) -> set[fx.Node]:
    """Roots whose memory values with other roots have, too."""
    owners: dict[int, set[fx.Node]] = {}
    for node, root in roots.items():
        for storage in storages(node) if tensor(node) is not None else ():
            owners.setdefault(storage, set()).add(root)
    return {root for found in owners.values() if len(found) > 1 for root in found}


def _traced(node: fx.Node) -> Any:
    """The traced value; of sizes that `Sizes` computes, made now."""
    if "val" not in node.meta:
        node.meta["val"] = cast(Any, node.target)(*map_arg(node.args, _traced))
    return node.meta["val"]
