"""Why a value is where it is, as a sentence for people."""

from __future__ import annotations

from torch import fx

from sp.passes.fxtools import op_name
from sp.program import AttentionSite, Partial, Program, Replicated, Sharded
from sp.show.naming import Naming


class Reasons:
    """Answers for the nodes of one program, at any stage."""

    def __init__(self, program: Program, naming: Naming) -> None:
        self.program, self.naming = program, naming
        rewritten = [node for node in program.graph.nodes if op_name(node) == "sp.attention"]
        self._sites = dict(zip(rewritten, program.attentions, strict=False))

    def why(self, node: fx.Node) -> str:
        """Empty before anything is placed."""
        if node in self._sites:
            return _attention(self._sites[node])
        if "why" in node.meta:
            return f"inserted: {self.naming.text(node.meta['why'])}"
        placement = self.program.placements.get(node.name)
        if isinstance(placement, Sharded):
            return self._sharded(node, placement)
        if isinstance(placement, Replicated):
            return _replicated(node)
        if isinstance(placement, Partial):
            return f"each rank holds its own part of a {placement.op}, which is still to be reduced"
        reduced = next((user for user in node.users if op_name(user) == "sp.reduce"), None)
        return "" if reduced is None else f"each rank computes its own tokens' part, and {reduced.name} joins the parts"

    def _sharded(self, node: fx.Node, placement: Sharded) -> str:
        """A value is spread because one that it is computed from is."""
        spread = (each for each in node.all_input_nodes if self._is_sharded(each))
        source = next(spread, None)
        held = f"each rank holds its own tokens, in dim {placement.dim}"
        if placement.outer != 1:
            held += f", behind {self.naming.text(str(placement.outer))} merged rows"
        return (
            held if source is None else f"{held}: {source.name} is spread over the ranks, and this is computed from it"
        )

    def _is_sharded(self, node: fx.Node) -> bool:
        return isinstance(self.program.placements.get(node.name), Sharded)


def _attention(site: AttentionSite) -> str:
    more = f"; {site.why}" if site.why else ""
    return f"an attention of the model, rewritten: mask {site.scores}, proven; kernel {site.kernel}{more}"


def _replicated(node: fx.Node) -> str:
    if node.op == "placeholder":
        return "an input: the same on every rank"
    return "the same on every rank: it is computed from what every rank has"
