"""Why a strategy takes the time it takes: what is lost against an even share of the work at the kernel's full speed."""

from __future__ import annotations

from sp.costs.phase import BACKWARD, Job
from sp.costs.transports import Attention

_LEAST = 0.005  # of the step: smaller losses are not worth a word


def reasons(job: Job, attention: Attention, dense: float) -> str:
    """`work of the busiest rank 1.88 × the mean +41 %, kernel tiles +2 %`: shares of the whole step.

    attention: of one layer.  dense: of all."""
    shape, both = job.shape, (attention.forward, attention.backward)
    step = dense + shape.layers * sum(phase.seconds for phase in both)
    pair = shape.pair_flops * (1 + BACKWARD) / job.machine.attention_flops
    uneven = attention.critical / attention.even
    losses = [
        (f"work of the busiest rank {uneven:.2f} × the mean", (attention.critical - attention.even) * pair),
        ("kernel tiles and bands", sum(phase.compute for phase in both) - attention.critical * pair),
        ("merging", sum(phase.merge for phase in both)),
        ("waiting for transfers", sum(phase.exposed for phase in both)),
    ]
    shares = [(word, shape.layers * seconds / step) for word, seconds in losses]
    worst = sorted((each for each in shares if each[1] >= _LEAST), key=lambda each: -each[1])
    return ", ".join(f"{word} +{share:.0%}".replace("%", " %") for word, share in worst) or "nothing lost"
