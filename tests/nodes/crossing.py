"""What crosses the link between hosts, run there by torchrun: bytes of attentions, and the losses of training steps.

    torchrun --nnodes 2 --nproc-per-node 2 … tests/nodes/crossing.py --train fsdp --out found.json

The first rank writes, as json, what each has found: `attention` of each strategy, `losses` of each way to train.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import sp
from sp.models import Llama, LlamaConfig
from tests.nodes.hosts import LINK

T = TypeVar("T")

STRATEGIES = ("striped", "double_ring", "usp")
TRAINED = ("double_ring", "fsdp")  # all ranks share a sequence; each host has a batch of its own
HEADS, KV_HEADS, SIZE = 4, 2, 64  # of the attention
STEPS = 3
PACKET = 1514  # bytes, headers included


class Attend(nn.Module):
    """Attention and nothing else."""

    def forward(self, q_BHSD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q_BHSD, k_BGSD, v_BGSD, is_causal=True, enable_gqa=True)


def make() -> nn.Module:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=61, layers=2, heads=4, kv_heads=2, width=32)).double()


def batch() -> Tensor:
    return torch.randint(0, 61, (2, 37), generator=torch.Generator().manual_seed(3))


def grid(axes: tuple[str, ...]) -> DeviceMesh:
    """All ranks, the first axis from host to host."""
    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    return init_device_mesh("cpu", (dist.get_world_size() // ranks, ranks), mesh_dim_names=axes)


def mesh_for(strategy: str) -> DeviceMesh | None:
    axes = sp.STRATEGIES[strategy].axes
    return grid(axes) if axes else None


@dataclass(frozen=True)
class Crossed:
    """Of one attention, in forward and in backward: what has left this host, and the slowest rank's seconds.

    resent: of `bytes` what TCP has sent twice, as it does when the other side does not answer in time."""

    bytes: tuple[int, int]
    resent: tuple[int, int]
    seconds: tuple[float, float]


def attention(strategy: str, length: int) -> Crossed:
    local = length // dist.get_world_size()
    q, k, v = (torch.randn(1, heads, local, SIZE, requires_grad=True) for heads in (HEADS, KV_HEADS, KV_HEADS))
    dims, mesh = dict.fromkeys(("q_BHSD", "k_BGSD", "v_BGSD"), 2), mesh_for(strategy)
    model = sp.parallelize(
        Attend(), strategy, mesh=mesh, sequence_dim=dims, inputs="local", outputs="local", compile=False
    )
    model(q, k, v).sum().backward()  # captured, connected
    out, *there = counted(lambda: model(q, k, v))
    _, *back = counted(lambda: torch.autograd.grad(out.sum(), [q, k, v]))
    return Crossed(*zip(there, back, strict=True))  # type: ignore[arg-type]


def sent() -> tuple[int, int]:
    """Bytes that have left this host over the link, and how many of them TCP has sent again, at most."""
    names, values = (
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Tcp:")
    )
    again = int(dict(zip(names, values, strict=True))["RetransSegs"]) * PACKET
    return int(Path(f"/sys/class/net/{LINK}/statistics/tx_bytes").read_text()), again


def counted(run: Callable[[], T]) -> tuple[T, int, int, float]:
    """What `run` returns; what this host has `sent` meanwhile, and seconds."""
    dist.barrier()
    before = sent()
    dist.barrier()  # nobody sends before all have read
    begin = time.perf_counter()
    result = run()
    dist.barrier()
    seconds, after = time.perf_counter() - begin, sent()
    dist.barrier()
    return result, after[0] - before[0], after[1] - before[1], seconds


def trained(way: str) -> list[float]:
    """The losses of this rank's batch: under a strategy over all ranks, or "fsdp", with a batch for each host."""
    model = make()
    if way == "fsdp":
        mesh = grid(("dp", "sp"))
        parallel = sp.fully_shard(model, mesh, compile=False)
        mine = batch().chunk(mesh["dp"].size())[mesh["dp"].get_local_rank()]
    else:
        parallel, mine = sp.parallelize(model, way, mesh=mesh_for(way), compile=False), batch()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), list[float]()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = parallel(mine, labels=mine).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def gathered(mine: T) -> list[T]:
    every = [mine] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--strategies", nargs="*", default=STRATEGIES)
    parser.add_argument("--train", nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    found = {
        "attention": {name: gathered(asdict(attention(name, args.length))) for name in args.strategies},
        "losses": {way: gathered(trained(way)) for way in args.train},
    }
    if dist.get_rank() == 0:
        args.out.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
