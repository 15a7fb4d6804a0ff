"""python -m tests.fuzz.sweep COUNT SEED: many programs, every failure printed, none shrunk."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.draw import programs, worlds
from tests.fuzz.program import Program
from tests.fuzz.trial import World, attempt


def main(count: int, number: int) -> None:
    verdicts, ops, began = Counter[str](), Counter[str](), time.monotonic()
    reasons, examples = Counter[str](), Counter[str]()

    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(programs(), worlds())
    def run(program: Program, world: World) -> None:
        try:
            outcome = attempt(program, world)
            verdict, text = outcome.verdict, outcome.text
        except Exception as error:
            verdict, text = "crash", traceback.format_exc()
        verdicts[verdict] += 1
        if verdict == "refused":
            line = next((l.strip() for l in text.splitlines() if "why:" in l), text.splitlines()[0])
            reasons[line[:150]] += 1
        if verdict in ("wrong", "crash"):
            print(f"=== {verdict} {world}\n{program!r}\n{text[-2500:]}", flush=True)
        if sum(verdicts.values()) % 50 == 0:
            print(f"--- {dict(verdicts)} {time.monotonic() - began:.0f} s", flush=True)

    run()
    print(f"--- {dict(verdicts)} {time.monotonic() - began:.0f} s")
    for reason, times in reasons.most_common(40):
        print(times, reason)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
