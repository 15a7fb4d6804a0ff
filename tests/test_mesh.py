"""Meshes of two axes: what is refused and what to write instead, the shape in the digest, and shards by hand."""

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import sp
from sp.models import Llama, LlamaConfig
from sp.runtime.world import find_world, seat_name
from sp.strategy import STRATEGIES
from sp.testing import ProcessWorld, run_mesh, run_ranks

TWO_AXES = [name for name, strategy in STRATEGIES.items() if strategy.axes]
IDS = torch.arange(14).view(1, 14) % 7


def llama() -> Llama:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=7, layers=1, heads=2, kv_heads=1, width=16)).double()


@pytest.mark.parametrize("name", TWO_AXES)
def test_one_axis_is_refused_with_the_line_to_write(name: str) -> None:
    def refused(group: dist.ProcessGroup) -> str:
        with pytest.raises(sp.StrategyError) as caught:
            sp.parallelize(llama(), name, mesh=group)
        return str(caught.value)

    axes = STRATEGIES[name].axes
    for message in run_ranks(4, refused):
        assert "the mesh has 1 axis: (4,)" in message
        assert f'remedy: mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names={axes})' in message
    for size, shape in ((8, (2, 4)), (7, (1, 7)), (1, (1, 1))):
        for call in (sp.inspect, sp.check):
            with pytest.raises(sp.StrategyError, match=re.escape(f"remedy: world_size={shape}")):
                call(llama(), (IDS,), strategy=name, world_size=size)


def test_two_axes_are_refused_where_one_is_enough() -> None:
    with pytest.raises(sp.StrategyError, match=r"the mesh has 2 axes: \(2, 4\)(.|\n)*remedy: world_size=8"):
        sp.inspect(llama(), (IDS,), strategy="striped", world_size=(2, 4))
    with pytest.raises(sp.StrategyError, match="a world of 2 x 0 ranks"):
        sp.check(llama(), (IDS,), strategy="usp", world_size=(2, 0))

    def refused(mesh: sp.MeshGroups) -> None:
        with pytest.raises(sp.StrategyError, match=r"the mesh has 2 axes(.|\n)*needed: one axis"):
            sp.parallelize(llama(), "ring", mesh=mesh)

    run_mesh((1, 2), refused)


def test_groups_in_another_order_are_refused() -> None:
    def refused(mesh: sp.MeshGroups) -> None:
        turned = sp.MeshGroups(mesh.whole, mesh.inner, mesh.outer)
        if mesh.whole.rank() in (1, 2):
            with pytest.raises(sp.StrategyError, match="row after row the ranks of the mesh are"):
                sp.parallelize(llama(), "usp", mesh=turned)
            with pytest.raises(AssertionError, match="of the mesh of"):
                find_world(turned.name)

    run_mesh((2, 2), refused)


def test_a_world_of_two_axes_is_found_by_name() -> None:
    def found(mesh: sp.MeshGroups) -> tuple[int, ...]:
        seat = seat_name(mesh.name)
        world = find_world(seat)
        assert world == find_world(mesh.name)
        assert seat == f"{mesh.name} as rank {world.rank} of 2x3, ops 3"
        assert seat_name(seat) == seat
        return world.rank, world.outer.rank, world.outer.size, world.inner.rank, world.inner.size

    assert run_mesh((2, 3), found) == [(r, r // 3, 2, r % 3, 3) for r in range(6)]


@pytest.mark.parametrize("name", TWO_AXES)
def test_no_process_group_is_a_world_of_one(name: str) -> None:
    plain = llama()
    assert torch.equal(sp.parallelize(llama(), name, compile=False)(IDS).logits, plain(IDS).logits)


@pytest.mark.parametrize("name", TWO_AXES)
def test_sequences_shorter_than_the_world(name: str) -> None:
    def refused(mesh: sp.MeshGroups) -> None:
        parallel = sp.parallelize(llama(), name, mesh=mesh, compile=False)
        with pytest.raises(sp.InputError, match="3 tokens cannot be spread over 4 ranks"):
            parallel(IDS[:, :3])

    run_mesh((2, 2), refused)


def test_ranks_that_see_other_meshes_disagree() -> None:
    """The digest of the program names the shape."""
    model = llama()  # seeds race between threads

    def refused(mesh: sp.MeshGroups, shape: tuple[int, int]) -> str:
        parallel = sp.parallelize(model, "double_ring", mesh=mesh, compile=False)
        strategy = parallel.options.strategy.on(shape if mesh.whole.rank() else mesh.shape)
        parallel.__dict__["options"] = replace(parallel.options, strategy=strategy)
        with pytest.raises(sp.RankMismatchError) as caught:
            parallel(IDS)
        return str(caught.value)

    for message in run_mesh((2, 3), lambda mesh: refused(mesh, (3, 2))):
        assert "the ranks disagree about the program" in message


@pytest.mark.parametrize("name", TWO_AXES)
def test_local_inputs_and_shards_by_hand(name: str) -> None:
    """Each rank passes its own tokens; logits come back as shards, and joined they are the plain model's."""
    plain, length = llama(), 13
    ids = IDS[:, :length]
    right = plain(ids).logits.detach()

    def rank(mesh: sp.MeshGroups) -> float:
        parallel = sp.parallelize(copy.deepcopy(plain), name, mesh=mesh, inputs="local", outputs="local", compile=False)
        mine = parallel.layout.shard(ids, 1)
        assert mine.tolist() == [[int(ids[0, p]) for p in parallel.layout.positions(length)]]
        logits = parallel(mine).logits
        assert logits.shape[1] == parallel.layout.local_length(length)
        return float((parallel.layout.unshard(logits, 1).detach() - right).norm() / right.norm())

    assert max(run_mesh((2, 3), rank)) < 1e-12


def test_validation_tries_a_mesh_of_two_by_two() -> None:
    plain = llama()

    def rank(mesh: sp.MeshGroups) -> float:
        parallel = sp.parallelize(copy.deepcopy(plain), "usp", mesh=mesh, compile=False, validate=True)
        return float(parallel(IDS, labels=IDS).loss)

    losses = run_mesh((1, 3), rank)
    assert losses == pytest.approx([float(plain(IDS, labels=IDS).loss)] * 3, rel=1e-12)


def meshes(name: str) -> list[Any]:
    """Of 4 processes: on the whole world, on a part of it, refused orders and missing names."""
    plain = llama()
    right = plain(IDS).logits
    axes = STRATEGIES[name].axes
    found: list[Any] = []
    for mesh in (
        init_device_mesh("cpu", (2, 2), mesh_dim_names=axes),
        init_device_mesh("cpu", (2, 2)),
        init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", *axes))[axes],
    ):
        parallel = sp.parallelize(llama(), name, mesh=mesh, compile=False)
        world = find_world(parallel.options.group)
        error = float((parallel(IDS).logits - right).norm() / right.norm())
        found.append((world.size, world.outer.size, world.inner.size, error))
    for mesh in (
        DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=axes),
        init_device_mesh("cpu", (4,)),
        init_device_mesh("cpu", (2, 2, 1)),
    ):
        with pytest.raises(sp.StrategyError) as caught:
            sp.parallelize(llama(), name, mesh=mesh)
        found.append(str(caught.value))
    part = DeviceMesh("cpu", [[0, 1]])  # made by all, of two of them
    if dist.get_rank() < 2:
        with pytest.raises(sp.StrategyError, match=r"have no names, and it is a part(.|\n)*mesh_dim_names="):
            sp.parallelize(llama(), name, mesh=part)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO_AXES)
def test_device_meshes(name: str, world4: ProcessWorld) -> None:
    for whole, unnamed, part, order, one, three in world4.run(meshes, name):
        assert whole[:3] == unnamed[:3] == (4, 2, 2)
        assert part[:3] == (2, 1, 2)
        assert max(whole[3], unnamed[3], part[3]) < 1e-12
        assert "the ranks of the mesh are [0, 2, 1, 3]" in order
        assert "init_device_mesh" in order
        assert "the mesh has 1 axis: (4,)" in one
        assert "(2, 2)" in one
        assert "the mesh has 3 axes" in three


def test_torchrun_without_a_process_group_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    with pytest.warns(UserWarning, match="no process group: each process runs the whole sequence") as caught:
        sp.parallelize(Llama(LlamaConfig(layers=1)))
    assert caught[0].filename == __file__, "the warning names the user's line"


def test_a_group_whose_name_is_gone() -> None:
    """torch asks the backend for it, which `destroy_process_group` may have taken away."""

    class Gone(dist.ProcessGroup):
        @property
        def group_name(self) -> str:
            raise RuntimeError("no backend")

    with pytest.raises(sp.StrategyError, match="the process group has no name any more\n  needed: one that is alive"):
        sp.parallelize(torch.nn.Linear(2, 2), mesh=Gone(0, 2))
