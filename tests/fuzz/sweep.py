"""Many random programs: `python -m tests.fuzz.sweep --count 3000 --seed 0`.  Prints what fails, and counts.

Programs are numbered: number N is the same one at every run of this version, and `--seed N --count 1` runs it alone.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

from tests.fuzz.draw import random_trial
from tests.fuzz.ops import OPS
from tests.fuzz.program import Program
from tests.fuzz.trial import Outcome, World, attempt


@dataclass
class Tally:
    """Verdicts, the reasons of refusals, and how often each op stood in a program that was accepted, and in any."""

    began: float = field(default_factory=time.monotonic)
    verdicts: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    accepted: Counter[str] = field(default_factory=Counter[str])
    drawn: Counter[str] = field(default_factory=Counter[str])

    def add(self, program: Program, outcome: Outcome) -> None:
        ops = {line.op for line in program.lines}
        self.verdicts[outcome.verdict] += 1
        self.drawn.update(ops)
        if outcome.verdict == "exact":
            self.accepted.update(ops)
        if outcome.verdict == "refused":
            lines = [line.strip() for line in outcome.text.splitlines()]
            self.reasons[next((line for line in lines if line.startswith("why:")), lines[0])[:140]] += 1

    def __str__(self) -> str:
        return f"{dict(self.verdicts)} in {time.monotonic() - self.began:.0f} s"

    def details(self) -> str:
        reasons = "\n".join(f"{times:5d}  {reason}" for reason, times in self.reasons.most_common(30))
        never = ", ".join(sorted(set(self.drawn) - set(self.accepted)))
        return f"{reasons}\nnever accepted: {never}\nnever drawn: {', '.join(sorted(set(OPS) - set(self.drawn)))}"


def run_one(program: Program, world: World) -> Outcome:
    """Whatever escapes from a trial is a finding like a wrong answer."""
    try:
        return attempt(program, world)
    except Exception:  # noqa: BLE001  (that is what the sweep looks for)
        return Outcome("wrong", traceback.format_exc())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first one")
    options = parser.parse_args()
    tally = Tally()
    for number in range(options.seed, options.seed + options.count):
        program, world = random_trial(number)
        outcome = run_one(program, world)
        tally.add(program, outcome)
        if outcome.verdict == "wrong":
            print(f"=== number {number}: {world}{program}\n{outcome.text}\n", flush=True)
        if (number - options.seed + 1) % 100 == 0:
            print(tally, flush=True)
    print(tally, tally.details(), sep="\n")
    raise SystemExit(tally.verdicts["wrong"] > 0)


if __name__ == "__main__":
    main()
