"""Measured machines: the same on all ranks, within reason, and fit to choose by."""

import math

import pytest
import torch

import sp
from sp.costs import MACHINES, Machine
from sp.models import Llama, LlamaConfig
from sp.testing import run_ranks


def test_all_ranks_hold_the_same_machine_and_choose_by_it() -> None:
    ids = torch.zeros(1, 64, dtype=torch.long)

    def rank(group: torch.distributed.ProcessGroup) -> tuple[Machine, str]:
        machine = sp.measure_machine(group)
        model = Llama(LlamaConfig(layers=1, heads=2, kv_heads=2, width=16))
        parallel = sp.parallelize(model, "auto", mesh=group, machine=machine, compile=False, example_args=(ids,))
        return machine, parallel.options.chosen.name

    (machine, name), *others = run_ranks(3, rank)
    assert all(other == (machine, name) for other in others)
    assert (machine.name, machine.ranks_per_node) == ("cpu, measured", 3)
    assert machine.tile == MACHINES["cpu"].tile
    for speed in (machine.matmul_flops, machine.attention_flops, machine.memory_bandwidth, machine.link_bandwidth):
        assert 1e6 < speed < 1e15
    assert 0 < machine.link_latency < 1


def test_alone_the_links_are_those_of_the_table() -> None:
    found, known = sp.measure_machine(), MACHINES["cpu"]
    assert (found.link_bandwidth, found.link_latency) == (known.link_bandwidth, known.link_latency)
    assert found.matmul_flops != known.matmul_flops
    assert found.memory == math.inf


def test_more_work_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only products move: the speed is their operations by its seconds."""
    clock = iter(range(10**6))
    monkeypatch.setattr("sp.measure.time.perf_counter", lambda: float(next(clock)))
    found = sp.measure_machine()
    assert found.matmul_flops == 2 * 1024**3
    assert found.attention_flops == 4 * 4 * 2048**2 * 64
    assert found.memory_bandwidth == 2 * 2**25
