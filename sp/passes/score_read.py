"""Reading scores: what an attention's mask, or what stands between its scores and its softmax, says to whom.

    and(le, and_1)       le is  j <= i                            → the band `causal`
    and_1 = and(eq, index)                                        → visible: eq & index, traced
    add(where(eq, scores, -inf), slopes)                          → visible: eq; bias: slopes

A conjunct that is provably a band becomes geometry of the plan, known before anything runs.  The rest becomes a
`Score`, which is evaluated where tiles need it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import fx

from sp.mask import CAUSAL, FULL, Band
from sp.passes.frames import BATCH, HEADS, KEYS, QUERIES, Frame, frame_of, operand_frame
from sp.passes.fxtools import same_size
from sp.passes.mask_proof import Unproven, prove_condition, prove_mask, shows_all, shows_itself
from sp.passes.score_layers import Layer, Part, conjuncts, is_plain, layer_of, terms, through
from sp.passes.score_sources import Source
from sp.passes.score_trace import Tracer
from sp.score import SCORE, Dtype, Name, Score

ATTENTION = (BATCH, HEADS, QUERIES, KEYS)


@dataclass(frozen=True)
class Reading:
    """Where a query may see a key at all, what else happens to its score, and the values that this needs."""

    band: Band
    score: Score
    sources: tuple[Source, ...]


def read_mask(mask: fx.Node | None, is_causal: bool, tracer: Tracer) -> Reading:
    """The mask operand of `scaled_dot_product_attention`; raises Untraceable."""
    parts = _Parts(tracer, CAUSAL if is_causal and tracer.banded else FULL)
    if is_causal and not tracer.banded:
        parts.visible.append(tracer.line("le.Tensor", Name("j"), Name("i")))
    if mask is not None and mask.meta["val"].dtype == torch.bool:
        parts.hide(Part(mask, frame_of(mask, ATTENTION)))
    elif mask is not None:
        parts.add(Layer(mask, frame_of(mask, ATTENTION)))
    return parts.reading()


def read_scores(
    root: fx.Node, tracer: Tracer, frame: Frame = ATTENTION, sink: tuple[fx.Node, Frame] | None = None
) -> Reading:
    """What stands between the scaled scores (`tracer.score`) and the softmax, which takes `root`; raises Untraceable.

    sink: the value of one more column of scores, and its frame."""
    parts = _Parts(tracer, FULL)
    parts.peel(root, frame)
    parts.sink = None if sink is None else tracer.value(*sink)
    return parts.reading()


@dataclass
class _Parts:
    """What has been taken off so far.  added: biases, and what hides by large numbers."""

    tracer: Tracer
    band: Band
    visible: list[Name] = field(default_factory=list[Name])
    added: list[Layer] = field(default_factory=list[Layer])
    score: Name | None = None
    sink: Name | None = None

    def hide(self, whole: Part) -> None:
        """Only where this is true the score is seen; elsewhere it is -inf."""
        for part in conjuncts(whole):
            band = self._band(part)
            if band is None:
                self.visible.append(self._truth(part))
            else:
                self.band &= band

    def _band(self, part: Part) -> Band | None:
        """Queries of no sequence have no place in a band: for them, only what hides nothing is proven."""
        if not self.tracer.banded:
            return FULL if shows_all(part.node, part.negated, self.tracer.algebra) else None
        try:
            return prove_condition(part.node, part.negated, self.tracer.algebra, part.frame)
        except Unproven:
            return None

    def add(self, layer: Layer) -> None:
        """Term by term, if one of them hides for good; otherwise as the model adds them."""
        if layer.softly:
            self.added.append(layer)
            return
        parts = [replace(term, inner=layer.inner) for term in terms(layer.node, layer.frame)]
        hard = any(found is not None and not found[1] for found in map(self._proven, parts))
        self.added += parts if hard else [layer]

    def peel(self, node: fx.Node, frame: Frame) -> None:
        """Take off what is outermost: a mask that hides for good, a bias that is added; what is left is a function."""
        node, frame = through(node, frame, self.tracer.score)
        if node is self.tracer.score:
            return
        layer = layer_of(node, frame, self.tracer.scored)
        if layer is None or (layer.softly and not is_plain(layer.inner, self.tracer.score)):
            self.score = self.tracer.value(node, frame)
            return
        if layer.hides:
            self.hide(layer.part)
        else:
            self.add(layer)
        assert layer.inner is not None
        self.peel(layer.inner, operand_frame(layer.inner, frame))

    def reading(self) -> Reading:
        band, biases = self._settle()
        roles = {
            "visible": self._joined("logical_and.default", self.visible),
            "bias": self._joined("add.Tensor", biases),
        }
        score, sources = self.tracer.finish(**roles, score=self.score, sink=self.sink)
        return Reading(band, score, sources)

    def _settle(self) -> tuple[Band, list[Name]]:
        """The band of all that is proven, and the biases that are left.

        What hides by large finite numbers hides only for rows that see something else.  So it may become geometry only
        where every query sees itself, whatever the data."""
        proven = [(layer, self._proven(layer)) for layer in self.added]
        hard = [found[0] for _, found in proven if found is not None and not found[1]]
        band = reduce(Band.__and__, hard, self.band)
        soft = [found[0] for _, found in proven if found is not None and found[1]]
        certain = not self.visible and self.score is None and None not in (found for _, found in proven)
        together = reduce(Band.__and__, soft, band)
        if soft and certain and self._all_see(together):
            return together, []
        left = [layer for layer, found in proven if found is None or found[1]]
        biases: list[Name] = []
        for layer in reversed(left):  # the innermost first
            if layer.softly:
                self.score = self._filled(layer)
            elif layer.rounds:
                self.score = self._rounded(layer)
            else:
                biases.append(self.tracer.value(layer.node, layer.frame))
        return band, biases[::-1]

    def _all_see(self, band: Band) -> bool:
        """Whether every query sees a key: itself or, if it looks back without end, the first one."""
        return shows_itself(band) and (band.left is None or same_size(self.tracer.queries, self.tracer.keys))

    def _proven(self, layer: Layer) -> tuple[Band, bool] | None:
        if layer.softly:
            band = self._band(layer.part)
            return None if band is None else (band, True)
        if not self.tracer.banded:
            return None
        try:
            return prove_mask(layer.node, self.tracer.algebra, layer.frame)
        except Unproven:
            return None

    def _filled(self, layer: Layer) -> Name:
        """Filled in rather than added: where a query sees nothing else, no gradient goes to its scores."""
        return self.tracer.line("where.ScalarOther", self._truth(layer.part), Name(SCORE), layer.amount)

    def _rounded(self, layer: Layer) -> Name:
        """Added in float16 as the model does, which loses scores beside -65504: a query that sees nothing shows it."""
        narrow = self.tracer.line("_to_copy.default", self.score or Name(SCORE), dtype=Dtype("float16"))
        return self.tracer.line("add.Tensor", narrow, self.tracer.value(layer.node, layer.frame))

    def _truth(self, part: Part) -> Name:
        found = self.tracer.value(part.node, part.frame)
        if part.node.meta["val"].dtype != torch.bool:
            found = self.tracer.line("ne.Scalar", found, 0)
        return self.tracer.line("logical_not.default", found) if part.negated else found

    def _joined(self, op: str, names: list[Name]) -> Name | None:
        return reduce(lambda a, b: self.tracer.line(op, a, b), names) if names else None
