"""Why a strategy takes the time it takes: what is lost against an even share of the work at the kernel's full speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sp.costs.phase import BACKWARD, Job, Phase
from sp.costs.transports import Attention

_LEAST = 0.005  # of the step: smaller losses are not worth a word


@dataclass(frozen=True)
class Priced:
    """Attentions that are alike.  attention: one of one sequence.  batch: sequences of one layer.  count: of all."""

    job: Job
    attention: Attention
    batch: int
    count: int

    def seconds(self, pairs: float) -> float:
        """That many pairs of one head at the kernel's full speed, forward, in all attentions."""
        return self.count * pairs * self.job.shape.pair_flops / self.job.machine.attention_flops


def balance_of(priced: Sequence[Priced]) -> float:
    """Mean work of a rank over that of the busiest, in all attentions."""
    critical, even = (sum(map(each, priced)) for each in (_critical, _even))
    return even / critical if critical else 1.0


def _critical(each: Priced) -> float:
    return each.seconds(each.attention.critical)


def _even(each: Priced) -> float:
    return each.seconds(each.attention.even)


def reasons(priced: Sequence[Priced], outputs: Phase, parameters: Phase, dense: float, trains: bool) -> str:
    """`work of the busiest rank 1.88 × the mean +41 %, kernel tiles +2 %`: shares of the whole step.

    dense: seconds of everything but attention."""
    ways = 1 + BACKWARD if trains else 1
    phases = [
        phase * each.count
        for each in priced
        for phase in (each.attention.forward, each.attention.backward)[: 2 if trains else 1]
    ]
    critical, even = (ways * sum(map(each, priced)) for each in (_critical, _even))
    losses = [
        (f"work of the busiest rank {critical / even if even else 1:.2f} × the mean", critical - even),
        ("kernel tiles and bands", sum(phase.compute for phase in phases) - critical),
        ("merging", sum(phase.merge for phase in phases)),
        ("waiting for transfers", sum(phase.exposed for phase in phases)),
        ("gathering outputs", outputs.seconds),
        ("waiting for parameters", parameters.seconds),
    ]
    step = dense + outputs.seconds + parameters.seconds + sum(phase.seconds for phase in phases)
    shares = [(word, seconds / step) for word, seconds in losses if step]
    worst = sorted((each for each in shares if each[1] >= _LEAST), key=lambda each: -each[1])
    return ", ".join(f"{word} +{share:.0%}".replace("%", " %") for word, share in worst) or "nothing lost"
