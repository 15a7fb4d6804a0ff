"""Stripes of several tokens: `striped:4` and the like, in attentions and whole models, against one device."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sp
from sp.mask import CAUSAL, FULL, Band
from sp.models import Llama, LlamaConfig
from sp.testing import run_ranks
from sp.testing.compare import errors_between, run_once
from tests.runtime import scored
from tests.runtime.attention_reference import make_inputs, relative_errors, single, spread_and_gather

MASKS = [FULL, CAUSAL, Band(5, 0), Band(3, 7), Band(None, 4), Band(9, None), Band(20, 0)]


@pytest.mark.parametrize(
    ("transport", "world"), [("ring", 2), ("ring", 3), ("allgather", 3), ("double_ring", (2, 2)), ("ring", 1)], ids=str
)
def test_float64_is_exact(transport: str, world: int | tuple[int, int]) -> None:
    """Whole rounds, what is left of one, less than one."""
    for number, mask in enumerate(MASKS):
        inputs = make_inputs((48, 53, 7)[number % 3], groups=(4, 2, 1)[number % 3])
        layout = ("striped:4", "striped:2")[number % 2]
        found = spread_and_gather(inputs, mask, layout, "flash", world, transport)
        assert max(relative_errors(found, single(inputs, mask))) < 1e-13, mask


@pytest.mark.parametrize("name", ["documents", "table", "sinks of queries, documents, soft cap", "slopes"])
def test_scores(name: str) -> None:
    """In many blocks, some of them skipped."""
    inputs = make_inputs(530, groups=1, size=4)
    found = scored.spread_and_gather(scored.CASES[name], inputs, "striped:32", "flash", 3)
    assert max(relative_errors(found, scored.written_out(scored.CASES[name], inputs))) < 1e-11


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_no_worse_than_one_device(dtype: torch.dtype) -> None:
    """Though a row is merged of more parts."""
    inputs = make_inputs(1024, heads=2, groups=1, size=32, batch=1, dtype=dtype)
    exact = single([x.double() for x in inputs], CAUSAL)
    alone = relative_errors(single(inputs, CAUSAL), exact)
    found = relative_errors(spread_and_gather(inputs, CAUSAL, "striped:16", "flash", 4), exact)
    assert all(f <= 1.5 * a for f, a in zip(found, alone, strict=True)), (found, alone)


@pytest.mark.parametrize("strategy", ["striped:4", "striped:64"])
def test_whole_model(strategy: str) -> None:
    """Labels shifted by the model, lengths that fill no round; more than a sequence holds is no error."""
    torch.manual_seed(0)
    model = Llama(LlamaConfig(vocab_size=61, layers=2, heads=4, kv_heads=2, width=32)).double()
    calls = [torch.randint(0, 61, (2, length)) for length in (41, 24, 9)]
    references = [run_once(model, (ids,), {"labels": ids}) for ids in calls]

    def rank(group: dist.ProcessGroup) -> list[Any]:
        parallel = sp.parallelize(copy.deepcopy(model), strategy, mesh=group, compile=False)
        runs = [run_once(parallel, (ids,), {"labels": ids}) for ids in calls]
        assert "striped:" in str(parallel.report())
        return [errors_between(run, reference) for run, reference in zip(runs, references, strict=True)]

    for found in run_ranks(3, rank):
        for errors in found:
            assert max(errors.outputs, errors.gradients) < 1e-11, errors
