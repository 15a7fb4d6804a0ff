"""Real families through `sp`: accepted and exact, or refused by name, as docs/zoo.md says."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sp
from sp.testing.compare import errors_between, run_once
from tests.zoo.families import FAMILIES
from tests.zoo.table import cases, read
from tests.zoo.trial import AS_IT_IS_BOUND, LENGTHS, Variant, call, make, sequence_dims, try_family

pytestmark = pytest.mark.usefixtures("one_capture")

ROOT = Path(__file__).parents[2]
CELLS = read()
# What `make test` has time for: one of each kind of block, mask, head and refusal.
REPRESENTATIVE: tuple[tuple[str, Variant], ...] = (
    ("Llama", "labels"),
    ("Qwen3", "packed"),
    ("Mistral (window)", "labels"),
    ("Gemma 3", "labels"),
    ("GPT-2", "labels"),
    ("GPT-NeoX", "left"),
    ("Qwen3-MoE", "labels"),
    ("DeepSeek-V3", "labels"),
    ("Llama (sequence classification)", "labels"),
    ("BERT (MLM)", "labels"),
    ("BERT (sequence classification)", "left"),
    ("ModernBERT (MLM)", "right"),
    ("T5", "labels"),
    ("BART", "labels"),
    ("ViT (trunk)", "plain"),
    ("SD3 (trunk)", "plain"),
)
ACCEPTED = [case for case in cases() if CELLS[case].verdict == "exact"]


def check(name: str, variant: Variant, strategy: str = "striped", world: int = 2, in_doubles: bool = True) -> None:
    """The trial ends as the table says; what is accepted against its word has been proven exact all the same."""
    outcome = try_family(FAMILIES[name], variant, strategy=strategy, world=world, in_doubles=in_doubles)
    assert outcome.verdict in ("exact", "refused"), f"{outcome.verdict}: {outcome.text}"
    expected, update = CELLS[name, variant], f"make zoo ARGS=\"'{name}'\""
    assert outcome.verdict == expected.verdict, (
        f"{outcome.verdict} where docs/zoo.md says {expected.verdict}: {outcome.text}\nIf that is right: {update}"
    )
    assert not expected.reasons or set(expected.reasons) & set(outcome.reasons), (
        f"refused for other reasons than docs/zoo.md says: {outcome.reasons}\nIf they are right: {update}"
    )


@pytest.mark.parametrize(("name", "variant"), REPRESENTATIVE)
def test_family(name, variant):
    if name not in FAMILIES:
        pytest.skip("diffusers is not installed")
    check(name, variant)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), list(cases()))
def test_every_family(name, variant):
    check(name, variant)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "world"), [("ring", 2), ("zigzag", 2), ("ring", 4), ("striped", 4), ("zigzag", 4)]
)
@pytest.mark.parametrize(("name", "variant"), ACCEPTED)
def test_every_strategy(name, variant, strategy, world):
    """What is refused is refused before ranks and layouts matter: `test_every_family` has seen it."""
    check(name, variant, strategy, world)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), ACCEPTED)
def test_with_the_models_own_casts(name, variant):
    check(name, variant, in_doubles=False)


def test_table_speaks_of_every_family():
    """And of no other; without diffusers the trunks cannot be asked."""
    assert set(cases()) <= CELLS.keys()
    assert {name for name, _ in CELLS} - FAMILIES.keys() <= {"DiT (trunk)", "SD3 (trunk)", "Flux"}


def compare(name, variant):
    """On every rank: the errors of one call per length, in the precision that the model chooses."""
    family = FAMILIES[name]
    model = make(family)
    kwargs = [call(family, variant, length) for length in LENGTHS]
    parallel = sp.parallelize(copy.deepcopy(model), sequence_dim=sequence_dims(family, kwargs[0]), compile=False)
    return [errors_between(run_once(parallel, (), given), run_once(model, (), given)) for given in kwargs]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Mistral (window)", "GPT-NeoX", "BART"])
def test_two_processes(world2, name):
    for errors in world2.run(compare, name, "labels", timeout_s=200):
        assert all(error.within(AS_IT_IS_BOUND) for error in errors), errors


DIGEST = """
from sp import inspect
from tests.zoo.families import FAMILIES
from tests.zoo.trial import call, make
print(inspect(make(FAMILIES["ModernBERT (MLM)"]), (), call(FAMILIES["ModernBERT (MLM)"], "plain", 24)).program.digest())
"""


@pytest.mark.slow
def test_processes_trace_one_program():
    """Python orders a set of strings by a seed of each process: as a rule, ranks have different ones."""
    environments = ({**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "3"))
    found = [subprocess.check_output([sys.executable, "-c", DIGEST], env=each, cwd=ROOT) for each in environments]
    assert found[0].split()[-1] == found[1].split()[-1]
