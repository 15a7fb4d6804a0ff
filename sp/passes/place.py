"""Place: where the sequence lives in every value.

    embedding   = aten.embedding(weight, ids)        sharded(dim 1)              it meets parameters
    view        = aten.view(linear, [-1, V])         sharded(dim 0, outer=B)
    pad         = aten.pad(labels, [0, 1])           replicated                  index domain: labels alone
    loss        = aten.cross_entropy_loss(view, t)   partial(sum)

Two domains.  The *index domain* (ids, labels, positions, and what is computed from them alone) stays replicated where
an op needs the whole sequence; each such value also gets a *local form*, used where it meets activations.  The
*activation domain* begins where the sequence meets a parameter; it is sharded from there on and never gathered.

Every refusal of the model is raised at once, those of earlier passes among them.  To find what comes after a refused
node, its result is assumed to hold the sequence where its shape says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import fx

from sp.errors import UnsupportedModelError
from sp.passes.attention import SDPA
from sp.passes.fxtools import inner_nodes, is_parameter, op_name, positional, result, shape, tensor, tensor_operands
from sp.passes.placements import Placements, carries_gradients, is_differentiable
from sp.passes.refusals import Refusals, read_by_refused
from sp.passes.rule_table import CREATIONS, find_rule, passes_through
from sp.passes.rules import TRAVELS, Case, Refused, Ruling
from sp.passes.score_sources import is_for_tiles, is_gathered
from sp.program import Placement, Program, Replicated, Sharded


@dataclass(frozen=True)
class Place:
    name: str = "place"

    def run(self, program: Program) -> Program:
        found, refusals = find_placements(program)
        if refusals.listed:
            count = f"{refusals.count} node{'s' if refusals.count > 1 else ''}"
            raise UnsupportedModelError(f"{count} cannot be spread over ranks exactly", refusals=refusals.listed)
        placements = {node.name: placement for node, placement in found.natural.items()}
        sharded = sum(isinstance(placement, Sharded) for placement in placements.values())
        text = f"{sharded} of {len(placements)} values sharded, {len(placements) - sharded} replicated or partial"
        return replace(program, placements=placements, found=found).note(self.name, text)

    def check(self, program: Program) -> None:
        missing = [node.name for node in program.graph.nodes if tensor(node) is not None]
        missing = [name for name in missing if name not in program.placements]
        if missing:
            raise AssertionError(f"place left {missing}")


def find_placements(program: Program) -> tuple[Placements, Refusals]:
    """Walk the graph once, in order; collect every refusal instead of stopping at the first."""
    found, refusals = Placements(moot=read_by_refused(program)), Refusals(program)
    local_inputs: Mapping[str, int | None] = {port.name: port.dim for port in program.inputs if port.local}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            _source(node, program, found, local_inputs.get(str(node.target)))
        elif node.op == "get_attr":
            found.natural[node] = Replicated()
            if is_parameter(node):
                found.trains.add(node)
                found.differentiable.add(node)
        elif node.op == "call_function":
            try:
                _judge(node, program, found)
            except Refused as reason:
                refusals.add(node, reason, found)
                _assume(node, program, found)
    return found, refusals


def _source(node: fx.Node, program: Program, found: Placements, local_dim: int | None) -> None:
    value = tensor(node)
    if value is not None and carries_gradients(value):
        found.differentiable.add(node)
    if local_dim is not None:
        found.natural[node] = Sharded.whole(local_dim, shape(node)[local_dim])
        return
    found.natural[node] = Replicated()
    _fresh(node, program, found)


def _fresh(node: fx.Node, program: Program, found: Placements) -> None:
    """An index-domain value whose whole sequence fills one dim can be sharded there, by a shard op of its own."""
    dim = _sequence_dim(node, program)
    if dim is not None:
        found.local[node] = Sharded.whole(dim, shape(node)[dim])


def _sequence_dim(node: fx.Node, program: Program) -> int | None:
    """The one dim that a sequence fills, if there is one and no other dim has anything of a sequence."""
    sizes = shape(node) if tensor(node) is not None else ()
    dims = [dim for dim, size in enumerate(sizes) if program.holds_sequence(size)]
    return dims[0] if len(dims) == 1 and program.is_length(sizes[dims[0]]) else None


def _assume(node: fx.Node, program: Program, found: Placements) -> None:
    """A refused node's result, for the search of further refusals."""
    known = [operand for operand in node.all_input_nodes if operand in found.natural]
    for reached in (found.trains, found.differentiable):
        if any(operand in reached for operand in known):
            reached.add(node)
    dim = _sequence_dim(node, program)
    if dim is not None:
        found.natural[node] = Sharded.whole(dim, shape(node)[dim])
    elif tensor(node) is not None and not any(map(program.holds_sequence, shape(node))):
        found.natural[node] = Replicated()
    else:
        found.unknown.add(node)


def _judge(node: fx.Node, program: Program, found: Placements) -> None:
    if node.name in program.refused:
        raise Refused(program.refused[node.name].why, program.refused[node.name].remedy)
    if any(operand in found.unknown for operand in node.all_input_nodes):
        found.unknown.add(node)
        return
    operands = tensor_operands(node)
    _refuse_random(node)
    if result(node) is None:
        _scalar(node, operands, found)
        return
    if sum(map(program.holds_sequence, shape(node))) > 1:
        if node in found.moot:
            found.unknown.add(node)
            return
        if not is_for_tiles(node):
            raise Refused(f"it builds a sequence × sequence value of shape {shape(node)}", "let an attention take it")
    if op_name(node) in CREATIONS:
        found.natural[node] = Replicated()
        _fresh(node, program, found)
        return
    _reach(node, found)
    if passes_through(node):
        _hand_on(node, found)
        return
    anchor = _anchor(node, operands, found)
    if anchor is not None:
        found.rulings[node] = ruling = _rule(node, anchor, program, operands, found)
        found.natural[node] = ruling.output
        return
    found.natural[node] = Replicated()
    _local_form(node, program, operands, found)


def _refuse_random(node: fx.Node) -> None:
    """No placement makes these right, in either domain."""
    if any(map(draws_noise, (node, *inner_nodes(node)))):
        raise Refused(
            "it draws random numbers, which would differ between ranks",
            "use dropout, whose noise sp makes itself; pass other noise in as an input, or call eval()",
        )


def draws_noise(node: fx.Node) -> bool:
    if op_name(node) == SDPA:  # only to drop out scores
        return bool(positional(node)[4])
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _reach(node: fx.Node, found: Placements) -> None:
    if any(operand in found.trains for operand in node.all_input_nodes):
        found.trains.add(node)
    if is_differentiable(node, found.differentiable):
        found.differentiable.add(node)


def _scalar(node: fx.Node, operands: list[fx.Node], found: Placements) -> None:
    """Sizes are global everywhere; any other number read from a sharded value would differ between ranks."""
    sharded = [operand for operand in operands if isinstance(found.natural.get(operand), Sharded)]
    if sharded and op_name(node) != "aten.sym_size":
        raise Refused(f"it reads a number from {sharded[0].name}, which is spread over the ranks", "keep it a tensor")


def _hand_on(node: fx.Node, found: Placements) -> None:
    source = node.all_input_nodes[0]
    found.natural[node] = found.natural.get(source, Replicated())
    if source in found.local:
        found.local[node] = found.local[source]
    if source in found.rulings:
        found.rulings[node] = replace(found.rulings[source], arguments={}, operands={})


def _anchor(node: fx.Node, operands: list[fx.Node], found: Placements) -> fx.Node | None:
    """The operand whose sharding decides, None if the node stays in the index domain.

    An op enters the activation domain when an operand is sharded, when the sequence meets a parameter, or when it is
    an attention.  Of operands that are dealt differently, one that covers its whole sequence decides: the others move,
    once, and what follows stays there."""
    sharded = [operand for operand in operands if isinstance(found.natural.get(operand), Sharded)]
    if sharded:
        return next((one for one in sharded if _is_whole(found.natural[one])), sharded[0])
    candidates = [operand for operand in operands if operand in found.local]
    meets_parameter = len(operands) > 1 and any(operand in found.trains for operand in operands)
    if candidates and (meets_parameter or op_name(node) == "sp.attention"):
        return candidates[0]
    return None


def _is_whole(placement: Placement) -> bool:
    return isinstance(placement, Sharded) and placement.is_whole


def _rule(node: fx.Node, anchor: fx.Node, program: Program, operands: list[fx.Node], found: Placements) -> Ruling:
    placement = found.sharded(anchor)
    assert placement is not None
    ruling = find_rule(node)(Case(node, anchor, placement, tuple(operands), program.symbols))
    silent = [operand.name for operand in operands if operand not in ruling.operands]
    if silent:
        raise Refused(f"its rule does not say what {', '.join(silent)} must be", "add a rule for this form of the op")
    for operand, need in ruling.operands.items():
        if not is_gathered(operand, node, found.natural[operand]):
            _check_need(operand, need, found)
    return ruling


def _check_need(operand: fx.Node, need: Placement, found: Placements) -> None:
    natural = found.natural[operand]
    if not isinstance(natural, Sharded):  # `localize` reduces a partial value where it is made, and cuts a whole one
        return
    if isinstance(need, Sharded) and natural.can_become(need):
        return
    raise Refused(
        f"{operand.name} is {natural} but is needed as {need}",
        "the same positions must meet: slice or transpose both alike",
    )


def _local_form(node: fx.Node, program: Program, operands: list[fx.Node], found: Placements) -> None:
    """How an index-domain value is computed from shards.  Where no rule says, it is computed whole and then cut; so is
    what would be a mere span of its sequence, since others may want to make it their own."""
    candidates = [operand for operand in operands if operand in found.local]
    if candidates:
        try:
            ruling = _rule(node, candidates[0], program, operands, found)
        except Refused:
            pass
        else:
            placed = ruling.lowering not in TRAVELS and isinstance(ruling.output, Sharded)
            if placed and (_is_whole(ruling.output) or _sequence_dim(node, program) is None):
                assert isinstance(ruling.output, Sharded)
                found.rulings[node] = ruling
                found.local[node] = ruling.output
                return
    _fresh(node, program, found)
