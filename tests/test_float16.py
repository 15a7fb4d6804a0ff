"""Half precision, as a model of float16 and as autocast: every tensor as exact over ranks as on one device, by float64.

Gradients of a mean over 134 tokens are well inside float16's range, so nothing is scaled.
"""

import copy
from contextlib import AbstractContextManager

import pytest
import torch
import torch.distributed as dist
from torch import nn

import sp
from sp.models import Llama, LlamaConfig
from sp.testing.compare import Run, relative_error, run_once, total_norm
from sp.testing.ranks import run_ranks

IDS = torch.randint(0, 64, (2, 67), generator=torch.Generator().manual_seed(0))
# Small tensors have few roundings to average over, and were up to 1.44 times as far off; all together have many.
EACH, TOGETHER = 2.0, 1.3


def llama(dtype: torch.dtype) -> Llama:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=64, layers=2, heads=4, kv_heads=2, width=32)).to(dtype)


def casting(autocast: bool) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.float16, enabled=autocast)


def called(run: nn.Module, autocast: bool) -> Run:
    with casting(autocast):
        return run_once(run, (IDS,), {"labels": IDS})


def named(run: Run) -> dict[str, torch.Tensor]:
    return {**{f"output {number}": value for number, value in enumerate(run.outputs)}, **run.gradients}


@pytest.mark.parametrize(
    "strategy",
    ["striped", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ring", "zigzag", "allgather", "ulysses"))],
)
@pytest.mark.parametrize("autocast", [False, True], ids=["half", "autocast"])
def test_float16_is_as_exact_as_on_one_device(strategy: str, autocast: bool) -> None:
    model = llama(torch.float32 if autocast else torch.float16)
    exact = copy.deepcopy(model).double()  # the same values
    right, alone = called(exact, autocast=False), called(model, autocast)
    models = [copy.deepcopy(model) for _ in range(3)]

    def rank(group: dist.ProcessGroup) -> Run:
        return called(sp.parallelize(models[group.rank()], strategy, mesh=group, compile=False), autocast)

    own, truth = named(alone), named(right)
    for run in run_ranks(3, rank, timeout_s=240):
        for name, value in named(run).items():
            assert value.dtype == own[name].dtype, name
            # A loss is one number, of which float32 keeps what the rounded logits leave: it may come right by luck.
            luck = torch.finfo(torch.float16).eps if value.ndim == 0 else 0.0
            assert relative_error(value, truth[name]) <= EACH * relative_error(own[name], truth[name]) + luck, name
        assert off(run, right) <= TOGETHER * off(alone, right)


def off(run: Run, right: Run) -> float:
    """All gradients as one."""
    return total_norm(run.gradients[name].double() - value for name, value in right.gradients.items())
