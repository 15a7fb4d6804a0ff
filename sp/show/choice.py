"""How `strategy="auto"` has chosen: one sentence, and the table of what it compared."""

from __future__ import annotations

from typing import Any

from sp.costs import Estimate, Estimates


def choice_text(estimates: Estimates, chosen: str) -> str:
    """`auto: zigzag, the fastest of 5 strategies; next striped, +4.1 %`, and the estimates."""
    fitting = sorted((each for each in estimates.found if each.fits), key=_seconds)
    best, others = estimates[chosen], [each for each in fitting if each.strategy.name != chosen]
    plural = "strategy" if len(fitting) == 1 else "strategies"
    which = f"the fastest of {len(fitting)} {plural}{' that fit' if len(fitting) < len(estimates.found) else ''}"
    following = f"; next {others[0].strategy.name}, {_slower(others[0], best)}" if others else ""
    return f"auto: {chosen}, {which}{following}\n{estimates}"


def _seconds(each: Estimate) -> float:
    return each.seconds


def _slower(each: Estimate, best: Estimate) -> str:
    if each.seconds == best.seconds:
        return "which takes as long"
    return f"+{100 * (each.seconds / best.seconds - 1):.1f} %"


def choice_dict(estimates: Estimates, chosen: str) -> dict[str, Any]:
    """The same facts as plain data.  Seconds of a step, bytes of one rank."""
    return {"chosen": chosen, **estimates.as_dict()}
