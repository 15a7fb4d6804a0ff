"""Models of unusual make: exact, or refused by name, and unchanged."""

from collections.abc import Iterator, Mapping

import pytest
import torch.distributed as dist

import sp
from sp.testing import run_ranks
from tests.bad_input.harness import Outcome, judge, plain_outcome, proper, session
from tests.bad_input.models import CASES, Case, Passes, in_ddp

# Refused before anything is captured.
QUICK = [case for case in CASES if case.says.startswith("StrategyError")]
REST = [case for case in CASES if case not in QUICK]
Found = Mapping[str, list[Outcome]]


def named(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id=case.name) for case in cases]


@pytest.fixture(scope="module")
def quick() -> Iterator[Found]:
    return session(3, QUICK)


@pytest.fixture(scope="module")
def rest() -> Iterator[Found]:
    return session(3, REST, timeout_s=500)


def hold(case: Case, found: Found) -> None:
    wrong = judge(case, found[case.name], None, plain_outcome(case))
    assert not wrong, "\n".join(wrong)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", named(QUICK))
def test_refused_where_they_are_given(case: Case, quick: Found) -> None:
    hold(case, quick)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", named(REST))
def test_exact_or_refused(case: Case, rest: Found) -> None:
    hold(case, rest)


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
def test_distributed_data_parallel(inside: bool) -> None:
    """It runs the model: with a hook in each parameter, it would sum gradients that sp has summed."""

    def rank(group: dist.ProcessGroup) -> str:
        model = Passes(in_ddp(group)) if inside else in_ddp(group)
        with pytest.raises(sp.SpError) as caught:
            proper(sp.parallelize(model, mesh=group, compile=False))
        return str(caught.value)

    for said in run_ranks(2, rank):
        assert "DistributedDataParallel" in said
        assert "remedy: " in said
