"""One stream of batches for all ranks that share a sequence, and shards cut from a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import sp
from sp.data import Stream, cut, sampler, stream
from sp.layout import LAYOUTS
from sp.models import GPT, GPTConfig
from sp.runtime.shards import BoundLayout
from sp.testing import ProcessWorld, run_ranks

pytestmark = pytest.mark.usefixtures("one_capture")

DATASET = TensorDataset(torch.arange(16 * 12).view(16, 12) % 61)


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=61, max_length=32, layers=1, heads=2, width=16)).double()


@dataclass
class Seen:
    """What one rank of 2 × 2 has seen."""

    streams: list[Stream]
    rows: list[int]
    losses: list[float]
    forgot: list[str]
    refused: list[str]


def train(batches: DataLoader[Any], parallel: sp.ParallelModule) -> tuple[list[int], list[float]]:
    rows, losses = [], []
    for (ids,) in batches:
        rows += [int(row[0]) for row in ids]
        losses.append(parallel(ids, labels=ids).loss.item())
    return rows, losses


def message(run: Callable[[], object]) -> str:
    with pytest.raises(sp.SpError) as caught:
        run()
    return f"{type(caught.value).__name__}: {caught.value}"


def fresh(mesh: DeviceMesh) -> sp.ParallelModule:
    """One that has made no calls yet."""
    return sp.parallelize(gpt(), mesh=mesh["sp"], compile=False)


def see() -> Seen:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    parallel = fresh(mesh)
    three = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("dp", "ring", "ulysses"))
    streams = [
        *(stream(mesh), stream(mesh["sp"]), stream(parallel), stream(mesh["sp"].get_group())),
        *(stream(three, axis=("ring", "ulysses")), stream(three["ring", "ulysses"], axis=("ring", "ulysses"))),
        *(stream(mesh, axis="dp"), stream(None)),
    ]
    rows, losses = train(DataLoader(DATASET, batch_size=2, sampler=sampler(DATASET, mesh)), parallel)
    mistaken = (DistributedSampler(DATASET), sampler(DATASET, mesh, axis="dp"))
    runs = (parallel, fresh(mesh))  # the first one has trained before
    loaders = [DataLoader(DATASET, 2, sampler=one) for one in mistaken]
    forgot = [message(partial(train, loader, run)) for loader, run in zip(loaders, runs, strict=True)]
    short = torch.zeros(1, 8 + dist.get_rank(), dtype=torch.long)
    forgot.append(message(lambda: parallel(short)))
    odd = dist.new_group([0]), dist.new_group([1, 2, 3])
    refused = [message(lambda: stream(odd[dist.get_rank() > 0])), message(lambda: stream(three))]
    return Seen(streams, rows, losses, forgot, refused)


@pytest.mark.slow
def test_streams_of_a_mesh(world4: ProcessWorld) -> None:
    seen = world4.run(see)
    for number, one in enumerate(seen):
        mine = Stream(number // 2, 2)
        assert one.streams == [mine] * 6 + [Stream(number % 2, 2), Stream(0, 1)]
        assert (one.rows, one.losses) == (seen[number // 2 * 2].rows, seen[number // 2 * 2].losses)
        for forgotten in one.forgot:
            assert forgotten.startswith("RankMismatchError: the ranks disagree about the ")
            assert "give them one stream, as DataLoader(…, sampler=sp.data.sampler(dataset, mesh)) does" in forgotten
        assert "the ranks of a sequence are [[0], [1, 2, 3]]" in one.refused[0]
        assert "num_replicas" in one.refused[0]
        assert "the mesh has the axes ['dp', 'ring', 'ulysses']\n  needed: 'sp' among them" in one.refused[1]
    assert sorted(seen[0].rows + seen[2].rows) == sorted(int(row[0]) for (row,) in DATASET)


def test_without_a_group_there_is_one_stream() -> None:
    assert stream(None) == Stream(0, 1)
    plain = sampler(DATASET, None, shuffle=False)
    assert list(plain) == list(range(16))
    assert list(sampler(DATASET, None, seed=1)) != list(sampler(DATASET, None, seed=2))


def test_a_batch_is_cut_where_it_holds_the_sequence() -> None:
    ids = torch.arange(22).view(2, 11)
    batch = {
        "ids": ids,
        "images": torch.randn(2, 11, 3),
        "rows": torch.ones(2, 1),
        "number": torch.tensor(3),
        "name": "x",
    }

    def rank(group: dist.ProcessGroup) -> None:
        layout = BoundLayout(LAYOUTS["striped"], group.group_name)
        mine = cut(batch, layout)
        positions = layout.positions(11)
        assert torch.equal(mine["ids"], ids[:, positions])
        assert torch.equal(mine["images"], batch["images"][:, positions])
        assert all(mine[name] is batch[name] for name in ("rows", "number", "name"))
        named = cut(batch, layout, {"ids": -1})
        assert torch.equal(named["ids"], mine["ids"])
        assert named["images"] is batch["images"]

    run_ranks(3, rank)


def test_a_batch_that_cannot_be_cut() -> None:
    layout = BoundLayout(LAYOUTS["contiguous"])
    batch: dict[str, Tensor] = {"ids": torch.zeros(2, 11), "targets": torch.zeros(2, 7)}
    with pytest.raises(
        sp.InputError, match=r"different lengths: \{'ids': 11, 'targets': 7\}(.|\n)*dim=\{'input_ids': 1"
    ):
        cut(batch, layout)
    with pytest.raises(sp.InputError, match=r"the batch has no 'labels'(.|\n)*ids, targets"):
        cut(batch, layout, {"labels": 1})
    with pytest.raises(sp.InputError, match="'ids' has no dim 5"):
        cut(batch, layout, {"ids": 5})
