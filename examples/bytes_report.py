"""What train_bytes.py shows at its end: whether the runs are equal, a table and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
from tabulate import tabulate

# Relative, on the loss and on the gradient norm of every step.  float32 rounds by 6e-8.  Sums in another order make it
# some 1e-7 in the first step, and the weights carry it on: measured, 4e-7 in the loss and 2e-5 in the norm after 60
# steps, where one label of 2048 wrong or lost makes 6e-4 in the loss and 2e-3 in the norm after 24.
# The bound is for trainings this short: over hundreds of steps any two orders of summation drift apart.
# What AdamW hides, such as one parameter's gradient wrong by a constant factor, hf_llama.py and the tests look at.
BOUND = 1e-4
LEGEND = """

Δ loss, Δ |grad|: largest relative difference to the single device over all steps, in the loss and in the gradient norm
first step: with capture and compilation; tokens/s and ms/step are of the median of the other steps
peak MiB: of a rank, tensors alive at once in one forward and backward, parameters and optimizer state aside"""


@dataclass
class Run:
    """What one training left behind: one entry a step, and the peak memory of a step in bytes."""

    name: str
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory: int = 0

    @property
    def step_s(self) -> float:
        """The median step; the first one, which compiles, does not count."""
        return statistics.median(self.seconds[1:] or self.seconds)


def differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(ours, theirs, strict=True)]


def furthest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest relative difference over all steps."""
    return max(difference / abs(b) for difference, b in zip(differences(ours, theirs), theirs, strict=True))


def equal(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Within rounding at every step.  Not a number is equal to nothing."""
    return all(abs(a - b) <= BOUND * abs(b) for a, b in zip(ours, theirs, strict=True))


def verdicts(single: Run, others: Sequence[Run], world: int) -> tuple[list[str], bool]:
    """A line for each strategy, and whether all of them are equal to the single device within rounding."""
    lines, all_same = [], True
    for run in others:
        same = equal(run.losses, single.losses) and equal(run.norms, single.norms)
        relation = "equal to single device within" if same else "NOT equal to single device, they differ by up to"
        distance = max(differences(run.losses, single.losses))
        lines.append(f"{run.name} over {world} ranks: {len(run.losses)} steps, losses {relation} {distance:.1e}")
        all_same &= same
    return lines, all_same


def table(single: Run, others: Sequence[Run], tokens: int) -> str:
    """tokens: of one step."""
    rows = []
    for run in (single, *others):
        apart = [furthest(run.losses, single.losses), furthest(run.norms, single.norms)] if run is not single else []
        speed = [tokens / run.step_s, 1000 * run.step_s, run.seconds[0]]
        rows.append([run.name, run.losses[-1], *(apart or ["", ""]), *speed, run.memory / 2**20])
    headers = ["run", "final loss", "Δ loss", "Δ |grad|", "tokens/s", "ms/step", "first step s", "peak MiB"]
    formats = ("", ".4f", ".1e", ".1e", ",.0f", ".0f", ".1f", ".1f")
    return tabulate(rows, headers, floatfmt=formats, tablefmt="simple") + LEGEND


def draw(single: Run, others: Sequence[Run], world: int, path: Path) -> None:
    """The losses above, how far each strategy's are from the single device's below."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(8, 6), height_ratios=(3, 2), layout="constrained")
    steps = range(1, len(single.losses) + 1)
    above.plot(steps, single.losses, color="0.75", linewidth=6, label=single.name)
    for run, style in zip(others, ("-", "--", ":", "-.") * len(others), strict=False):
        above.plot(steps, run.losses, style, label=f"{run.name}, {world} ranks")
        below.plot(steps, [max(d, 1e-8) for d in differences(run.losses, single.losses)], style)
    below.plot(steps, [BOUND * loss for loss in single.losses], color="tab:red", linewidth=1, label="bound")
    above.set_ylabel("loss (nats per byte)")
    below.set(yscale="log", xlabel="step", ylabel="|difference|, equal at 1e-8")
    for axes in (above, below):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    plt.close(figure)
