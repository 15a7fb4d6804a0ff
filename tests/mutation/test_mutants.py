"""The mutants of a few lines: one mistake each, and what is no code stays as it is."""

import pytest

from tests.mutation.mutants import mutants_of
from tests.mutation.sample import chosen, draw

SOURCE = '''
LIMIT: int = 3

class A:
    @cache(maxsize=4)
    def f(self, a: list[1], b=5) -> None:
        """Docs of 1."""
        assert a, "message 7"
        if a < 2 and not b:
            self.n = 0
            return min(a, -b)
        raise ValueError(a)
'''


def shown(source: str) -> set[str]:
    return {str(mutant).partition(": ")[2] for mutant in mutants_of(source)}


def test_every_mutant_of_a_function() -> None:
    assert shown(SOURCE) == {
        "assert a, 'message 7' → (nothing)",
        "if a < 2 and (not b): → if not (a < 2 and (not b)):",
        "a < 2 and (not b) → a < 2 or not b",
        *("a < 2 → a <= 2", "a < 2 → a >= 2", "2 → 3", "2 → 1"),
        "not b → b",
        *("self.n = 0 → (nothing)", "0 → 1", "0 → -1"),
        *("return min(a, -b) → return None", "min → max", "-b → b"),
        "raise ValueError(a) → (nothing)",
    }


@pytest.mark.parametrize("mutant", mutants_of(SOURCE), ids=str)
def test_a_mutant_is_a_program_that_differs_in_its_line(mutant) -> None:
    compile(mutant.tree, "f.py", "exec")
    assert SOURCE.splitlines()[mutant.line - 1].strip()


def test_lines_without_effect_have_no_mutants() -> None:
    assert shown("def f():\n    return None\n") == set()
    assert shown("x = 1 + 2\n") == set(), "outside of functions"


def test_a_sample_is_the_same_each_time_and_numbered_by_lines() -> None:
    mutants = mutants_of(SOURCE)
    drawn = draw(mutants, 5, seed=1)
    assert drawn == draw(mutants, 5, seed=1)
    assert [*drawn] == [1, 2, 3, 4, 5]
    assert [mutant.line for mutant in drawn.values()] == sorted(mutant.line for mutant in drawn.values())
    assert {mutant.line for mutant in draw(mutants, 99, 0, lines=[9]).values()} == {9}


def test_ranges_of_a_sample_have_each_mutant_once() -> None:
    drawn = draw(mutants_of(SOURCE), 99, seed=0)
    parts = [chosen(drawn, first, first + 3) for first in range(1, len(drawn) + 1, 4)]
    assert {number: mutant for part in parts for number, mutant in part.items()} == drawn
    assert sum(map(len, parts)) == len(drawn)
