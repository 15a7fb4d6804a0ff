"""Bad arguments of a call, and what is wrong on one rank alone: never a hang, never a silent wrong answer.

Sessions run all of their cases on one world, so that each case also shows that those before it have left nothing."""

from collections.abc import Iterator, Mapping

import pytest

from tests.bad_input import inputs, lone, surroundings
from tests.bad_input.harness import Case, Outcome, judge, plain_outcome, session

WORLD = 3
Found = Mapping[str, list[Outcome]]


def is_quick(case: Case) -> bool:
    """Whether it is answered without a capture of its own."""
    if case.name.startswith("ids: ") and case.says == "exact":
        return "int32" not in case.name and "one row" not in case.name
    return case.says.startswith("InputError") and "different lengths" not in case.says


QUICK = [case for case in inputs.CASES if is_quick(case)]
REST = [case for case in inputs.CASES if not is_quick(case)]
HALVES = [REST[::2], REST[1::2]]


def named(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id=case.name) for case in cases]


@pytest.fixture(scope="module")
def quick() -> Iterator[Found]:
    return session(WORLD, QUICK)


@pytest.fixture(scope="module")
def alone() -> Iterator[Found]:
    return session(WORLD, lone.CASES)


@pytest.fixture(scope="module")
def around() -> Iterator[Found]:
    return session(2, surroundings.CASES, timeout_s=500)


@pytest.fixture(scope="module")
def rest() -> Iterator[Found]:
    return {name: ranks for half in HALVES for name, ranks in session(WORLD, half, timeout_s=500).items()}


def hold(case: Case, found: Found) -> None:
    wrong = judge(case, found[case.name], found.get(f"{case.name} again"), plain_outcome(case))
    assert not wrong, "\n".join(wrong)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", named(QUICK))
def test_arguments(case: Case, quick: Found) -> None:
    hold(case, quick)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", named(lone.CASES))
def test_one_rank_alone(case: Case, alone: Found) -> None:
    hold(case, alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", named(REST))
def test_arguments_that_are_captured(case: Case, rest: Found) -> None:
    hold(case, rest)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", named(surroundings.CASES))
def test_surroundings(case: Case, around: Found) -> None:
    hold(case, around)


def test_names_are_unique() -> None:
    names = [case.name for case in (*inputs.CASES, *lone.CASES, *surroundings.CASES)]
    assert len(set(names)) == len(names) >= 200
