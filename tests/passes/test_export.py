"""What torch.export says when it refuses, read for the range of lengths that would do."""

import pytest

from sp.passes.export import Lengths, _fixed_batches, _fixed_length, _narrowed, _unproven

SIZE = "L['tensors'][0].size()[1]"
FIXES = "Constraints violated (S)!\n  - something\n\nSuggested fixes:\n  "
WRONG = f"  - Not all values of S = {SIZE} in the specified range{{}} satisfy the generated guard {{}}."
GUARD = f"Constraints violated (S)!\n{WRONG}"


@pytest.mark.parametrize(
    ("message", "known", "range_"),
    [
        (FIXES + "S = Dim('S', max=32)", Lengths(), Lengths(2, 32)),
        (FIXES + "S = Dim('S', min=4)", Lengths(), Lengths(4, None)),
        (FIXES + "S = Dim('S', min=4, max=32)", Lengths(), Lengths(4, 32)),
        (FIXES + "S = Dim('S', min=3)", Lengths(6, 32), Lengths(6, 32)),
        (GUARD.format("", f"((-1) + {SIZE}) != 1"), Lengths(), Lengths(3, None)),
        (GUARD.format(" 5 <= S", f"(4*{SIZE}) != 20"), Lengths(), Lengths(6, None)),
        (GUARD.format(" S <= 32", f"{SIZE} != 32"), Lengths(2, 32), Lengths(2, 31)),
        ("RuntimeError: something else", Lengths(), Lengths()),
    ],
)
def test_the_range_asked_for(message: str, known: Lengths, range_: Lengths) -> None:
    assert _narrowed(message, "S", known) == range_


@pytest.mark.parametrize(
    ("fix", "fixed"),
    [("S = 9", "9"), ("S = 4*_S", "4*_S"), ("S = Dim('S', max=32)", None), ("B2 = 2", None)],
)
def test_a_length_that_is_fixed(fix: str, fixed: str | None) -> None:
    assert _fixed_length(FIXES + fix) == fixed


def test_batches_that_are_fixed() -> None:
    assert _fixed_batches(FIXES + "B2 = 2\n  S = Dim('S', max=32)\n  B4 = 4") == {2, 4}


def test_guards_in_terms_of_the_length() -> None:
    assert _unproven(GUARD.format(" 5 <= S", f"(4*{SIZE}) != 20"), "S") == "(4*S) != 20"


def test_lengths() -> None:
    assert [Lengths(3, 5).holds(length) for length in range(2, 7)] == [False, True, True, True, False]
    assert Lengths(2).holds(10**9)
