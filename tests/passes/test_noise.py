"""Dropout becomes noise from one seed; the rest of the graph stays."""

from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor

from sp.errors import UnsupportedModelError
from sp.passes import pipeline
from sp.passes.fxtools import op_name
from sp.passes.noise import SeedNoise
from sp.passes.normalize import Normalize
from sp.program import NOISE_SEED, Port
from tests.passes.programs import Small, listing, ops, program_of


def dropped(m: Small, ids: Tensor) -> Tensor:
    h = F.dropout(m.l(m.e(ids)), 0.25)
    return F.linear(h, F.dropout(m.l.weight, 0.5))


def test_printed(golden: Callable[[str, str], None]) -> None:
    """Before place, and as every rank runs it."""
    before = listing(program_of(dropped, passes=(Normalize(), SeedNoise())))
    golden("passes/noise", f"{before}\n\n{listing(program_of(dropped, passes=pipeline()))}")


def test_one_more_input() -> None:
    program = program_of(dropped, passes=(SeedNoise(),))
    assert program.inputs[-1] == Port(NOISE_SEED, None)
    assert program.inputs[-1].is_added
    assert program.history[-1].text == "2 dropouts drawn from one seed"


def test_without_dropout_nothing_is_added() -> None:
    program = program_of(lambda m, ids: m.e(ids), passes=(SeedNoise(),))
    assert all(not port.is_added for port in program.inputs)


def test_channels_are_dropped_whole() -> None:
    program = program_of(lambda m, ids: F.dropout1d(m.e(ids).mT, 0.5), passes=(SeedNoise(),))
    assert "sp.noise" in ops(program)
    (noise,) = [node for node in program.graph.nodes if op_name(node) == "sp.noise"]
    assert list(noise.meta["val"].shape)[1:] == [4, 1]


OTHERS: dict[str, Callable[..., Any]] = {
    "of alpha dropout": lambda m, ids: F.alpha_dropout(m.e(ids), 0.5, training=True),
    "of a uniform": lambda m, ids: m.e(ids) * m.e(ids).new_empty(4).uniform_(),
    "of rrelu": lambda m, ids: F.rrelu(m.e(ids), training=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_noise_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"it draws random numbers(.|\n)*pass other noise in as an input"):
        program_of(OTHERS[name], passes=pipeline())


def test_check_is_able_to_fail() -> None:
    with pytest.raises(AssertionError, match="noise left"):
        SeedNoise().check(program_of(dropped))
