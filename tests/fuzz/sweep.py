"""python -m tests.fuzz.sweep COUNT SEED: many programs, every failure printed, none shrunk."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter

from tests.fuzz.draw import random_trial
from tests.fuzz.ops import OPS
from tests.fuzz.trial import attempt


def main(count: int, number: int) -> None:
    verdicts, ops, began = Counter[str](), Counter[str](), time.monotonic()
    reasons, refused = Counter[str](), Counter[str]()

    for index in range(number, number + count):
        program, world = random_trial(index)
        try:
            outcome = attempt(program, world)
            verdict, text = outcome.verdict, outcome.text
        except Exception:
            verdict, text = "crash", traceback.format_exc()
        verdicts[verdict] += 1
        mine = {line.op for line in program.lines}
        ops.update(mine)
        if verdict == "refused":
            refused.update(mine)
        if verdict == "refused":
            line = next((l.strip() for l in text.splitlines() if "why:" in l), text.splitlines()[0])
            reasons[line[:150]] += 1
        if verdict in ("wrong", "crash"):
            print(f"=== {verdict} {index} {world}\n{program!r}\n{text[-2500:]}", flush=True)
        if sum(verdicts.values()) % 50 == 0:
            print(f"--- {dict(verdicts)} {time.monotonic() - began:.0f} s", flush=True)

    print(f"--- {dict(verdicts)} {time.monotonic() - began:.0f} s")
    for reason, times in reasons.most_common(40):
        print(times, reason)
    print(", ".join(f"{name} {refused[name]}/{ops[name]}" for name in sorted(ops, key=lambda n: -refused[n] / ops[n])))
    print("never drawn:", sorted(set(OPS) - set(ops)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
