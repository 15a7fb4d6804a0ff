"""Measuring a machine: what products, attention, memory and links reach here and now, for the cost model.

The ranks measure together and take the slowest of all, so that each holds the same numbers and would choose alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from sp.costs import Machine, machine_of
from sp.errors import StrategyError
from sp.mesh import Mesh, bind_mesh
from sp.runtime.comm import all_gather, post_exchange
from sp.runtime.world import World, find_world

_REPEATS = 5
_WIDTH, _TOKENS, _HEADS, _SIZE = 1024, 2048, 4, 64
_LARGE, _SMALL = 2**24, 8  # bytes of messages, so many that the latency of one does not count


def measure_machine(
    mesh: Mesh = None, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Machine:
    """The machine at hand, for `sp.estimate` and `machine=`; takes a second.  All ranks of `mesh` call it.

        >>> here = sp.measure_machine()
        >>> here.name, here.matmul_flops > 1e9
        ('cpu, measured', True)

    Measured are products of matrices and attention of `dtype` on `device`, copies, and exchanges between neighbours of
    the group, as it lies: what is between nodes and what is inside is not told apart.  Kernel tiles, memory and how
    much slower bands are come from `sp.costs.MACHINES`, by the device.  Without other ranks so do the links."""
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise StrategyError(f"there is no device {device!r}", needed="'cpu' or 'cuda', or another of torch") from error
    world = find_world(bind_mesh(None, mesh)[1])
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    base = machine_of(device.type, chip)
    speeds = [_products(device, dtype), _attention(device, dtype), _copies(device)]
    if world.size > 1:
        speeds += [1 / _hop(world, device, _SMALL), _LARGE / _hop(world, device, _LARGE)]
    matmul, attention, memory, *links = _slowest(world, speeds, device)
    found = replace(
        base, name=f"{base.name}, measured", matmul_flops=matmul, attention_flops=attention, memory_bandwidth=memory
    )
    if not links:
        return found
    return replace(found, ranks_per_node=world.size, link_latency=1 / links[0], link_bandwidth=links[1])


def _products(device: torch.device, dtype: torch.dtype) -> float:
    a = torch.randn(_WIDTH, _WIDTH, device=device, dtype=dtype)
    return 2 * _WIDTH**3 / _seconds(lambda: a @ a, device)


def _attention(device: torch.device, dtype: torch.dtype) -> float:
    """Where nothing is masked, forward."""
    q = torch.randn(1, _HEADS, _TOKENS, _SIZE, device=device, dtype=dtype)
    return 4 * _HEADS * _TOKENS**2 * _SIZE / _seconds(lambda: F.scaled_dot_product_attention(q, q, q), device)


def _copies(device: torch.device) -> float:
    """Bytes read and written."""
    source, target = (torch.zeros(2**25, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)


def _hop(world: World, device: torch.device, size: int) -> float:
    """Until every rank has so many bytes of its neighbour."""
    send, receive = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    to, source = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    return _seconds(lambda: post_exchange(world, send, to, receive, source).wait(), device)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """The median of some calls, after one that nobody counts."""
    found: list[float] = []
    for _ in range(_REPEATS + 1):
        _settle(device)
        begin = time.perf_counter()
        call()
        _settle(device)
        found.append(time.perf_counter() - begin)
    return median(found[1:])


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _slowest(world: World, speeds: list[float], device: torch.device) -> list[float]:
    mine = torch.tensor(speeds, dtype=torch.float64, device=device)
    all_of: list[Tensor] = all_gather(world, mine, [(len(speeds),)] * world.size)
    return torch.stack(all_of).amin(0).tolist()
