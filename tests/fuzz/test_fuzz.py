"""Random programs on random worlds: exact, or refused by name.  docs/fuzzing.md says what longer runs have found."""

import random

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase, given

from tests.fuzz.draw import Drawing, random_trial, trials
from tests.fuzz.kinds import Kind, Length, S, Signature, T
from tests.fuzz.model import Fuzzed, make_inputs
from tests.fuzz.op import op
from tests.fuzz.ops import OPS
from tests.fuzz.parts import Parts
from tests.fuzz.program import INPUTS, Line, Program
from tests.fuzz.sweep import Tally, run_one
from tests.fuzz.trial import World, attempt

LEAST_ACCEPTED = 0.7
MANY = 3000
IDS = ("ids",)
WORLD = World(3, "striped", (2, 0))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_random_programs_are_exact_or_refused(count: int) -> None:
    """The same programs at every run; hypothesis shrinks what fails to the lines that matter."""
    verdicts: list[str] = []

    @hypothesis.settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(trials(most=5))
    def every(trial: tuple[Program, World]) -> None:
        outcome = attempt(*trial)
        verdicts.append(outcome.verdict)
        assert outcome.verdict != "wrong", outcome.text

    every()
    assert verdicts.count("exact") >= LEAST_ACCEPTED * count


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_sweep_of_random_programs() -> None:
    """Longer ones, evenly drawn; `make fuzz` does the same and counts."""
    for number in range(MANY):
        program, world = random_trial(number)
        outcome = run_one(program, world)
        assert outcome.verdict != "wrong", f"number {number}: {world}{program}\n{outcome.text}"


def negated_on_ranks(m: Parts, x: torch.Tensor) -> torch.Tensor:
    """What no compiler can get right: the plain model does something else."""
    return -x if torch.compiler.is_exporting() else x


def test_a_wrong_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "negated", op("hidden n -> hidden n", negated_on_ranks))
    program = Program(IDS, (Line("embed", (0,)), Line("negated", (1,))), (2,))
    outcome = attempt(program, WORLD)
    assert outcome.verdict == "wrong"
    assert "what='v2'" in outcome.text
    assert "d outputs / d parts.e.weight" in outcome.text


def test_a_refusal_is_none_of_the_others() -> None:
    program = Program(IDS, (Line("embed", (0,)), Line("flip", (1,))), (2,))
    outcome = attempt(program, WORLD)
    assert outcome.verdict == "refused"
    assert "aten.flip" in outcome.text


def test_a_bare_error_is_a_finding() -> None:
    program = Program(IDS, (Line("embed", (0,)), Line("add", (1, 0))), (2,))  # ids are no activations: a broken program
    assert "RuntimeError" in run_one(program, WORLD).text
    tally = Tally()
    tally.add(program, run_one(program, WORLD))
    assert str(tally).startswith("{'wrong': 1} in ")


@pytest.mark.parametrize(
    ("signature", "operands", "result"),
    [
        ("hidden n -> hidden n-1", [Kind("hidden", S)], Kind("hidden", Length(1, 0, -1))),
        ("hidden n, hidden k -> hidden n+k+2", [Kind("hidden", S), Kind("hidden", T)], Kind("hidden", Length(1, 1, 2))),
        ("hidden n -> hidden 2n", [Kind("hidden", Length(1, 0, 1))], Kind("hidden", Length(2, 0, 2))),
        ("hidden n, hidden n -> scalar", [Kind("hidden", S), Kind("hidden", T)], None),
        ("hidden S-1, labels S -> scalar", [Kind("hidden", Length(1, 0, -1)), Kind("labels", S)], Kind("scalar")),
        ("hidden S-1, labels S -> scalar", [Kind("hidden", S), Kind("labels", S)], None),
        ("hidden n -> hidden 2n", [Kind("hidden", Length(2))], None),  # would be too long
        ("heads n -> pooled", [Kind("hidden", S)], None),
    ],
)
def test_kinds(signature: str, operands: list[Kind], result: Kind | None) -> None:
    assert Signature.of(signature).makes(operands) == result


NDIM = {"scalar": 0, "ids": 2, "flags": 2, "token": 2, "merged": 2, "pooled": 2, "hidden": 3, "first": 3, "heads": 4}
MAKERS = ("known", "heads", "merge", "seq_first", "channels", "token", "per_token", "mean", "mean_all", "prefix_of")
MAKERS = (*MAKERS, "drop_first", "pad_left", "join_prefix", "join_self")


@pytest.mark.parametrize("name", list(OPS))
def test_every_op_runs_and_makes_what_its_signature_says(name: str) -> None:
    inputs = ("ids", "labels", "features", "others")
    drawing = Drawing(random.Random(0).choice, [INPUTS[each] for each in inputs], [])
    drawing.line("embed_again", (0,))
    for maker in MAKERS:
        drawing.line(maker, {"known": (0,), "per_token": (4, 1)}.get(maker, (4,)))
    drawing.line(name, drawing.operands(name))
    last = len(drawing.kinds) - 1
    program = Program(inputs, tuple(drawing.lines), (last,))
    (value,), kind = Fuzzed(program)(*make_inputs(program, 13, 11, 2)).values(), drawing.kinds[last]
    assert value.ndim == NDIM.get(kind.form, 3)
    assert value.isfinite().all()
    if kind.form in ("ids", "flags", "token", "hidden"):
        assert kind.length is not None
        assert value.shape[1] == 13 * kind.length.first + 11 * kind.length.second + kind.length.more
