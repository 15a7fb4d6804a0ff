"""Every argument of another kind, or out of range, is refused where it is given."""

from collections.abc import Callable
from typing import Any

import pytest

import sp
from tests.bad_input.arguments import CASES


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "says"), [pytest.param(*rest, id=name) for name, *rest in CASES])
def test_refused_where_it_is_given(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(sp.SpError) as caught:
        call()
    kind, _, words = says.partition(": ")
    assert type(caught.value).__name__ == kind
    assert words in str(caught.value)
    assert "needed: " in str(caught.value) or "remedy: " in str(caught.value)
