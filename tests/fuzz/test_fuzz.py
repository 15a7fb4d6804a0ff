"""Random programs on random worlds: exact, or refused by name.  docs/fuzzing.md says what longer runs have found."""

import hypothesis
from hypothesis import HealthCheck, Phase, given

from tests.fuzz.draw import trials
from tests.fuzz.program import Program
from tests.fuzz.trial import World, attempt

COUNT, LEAST_ACCEPTED = 200, 0.6


def test_random_programs_are_exact_or_refused() -> None:
    """Fixed seeds; what fails is shrunk to the lines that matter."""
    verdicts: list[str] = []

    @hypothesis.settings(
        max_examples=COUNT,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(trials())
    def every(trial: tuple[Program, World]) -> None:
        outcome = attempt(*trial)
        verdicts.append(outcome.verdict)
        assert outcome.verdict in ("exact", "refused"), outcome.text

    every()
    assert verdicts.count("exact") > LEAST_ACCEPTED * COUNT
