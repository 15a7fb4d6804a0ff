"""Worlds of threads on a mesh of two axes; those of one axis are tried in test_ranks.py."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import sp
from sp.testing.threads import run_mesh, run_ranks


def test_each_rank_has_three_groups_and_values_come_row_after_row() -> None:
    def rank(mesh: sp.MeshGroups) -> tuple[int, ...]:
        found = [mesh.whole.rank()]
        for group in (mesh.whole, mesh.outer, mesh.inner):
            total = torch.tensor([mesh.whole.rank()])
            group.allreduce([total]).wait()
            found.append(int(total))
        assert mesh.shape == (2, 3)
        return tuple(found)

    rows = [[(0, 15, 3, 3), (1, 15, 5, 3), (2, 15, 7, 3)], [(3, 15, 3, 12), (4, 15, 5, 12), (5, 15, 7, 12)]]
    assert run_mesh((2, 3), rank) == [*rows[0], *rows[1]]


def test_a_rank_that_raises_ends_its_mesh() -> None:
    def rank(mesh: sp.MeshGroups) -> None:
        if mesh.whole.rank() == 1:
            raise KeyError("planted")
        mesh.outer.allreduce([torch.zeros(1)]).wait()
        mesh.inner.allreduce([torch.zeros(1)]).wait()

    with pytest.raises(KeyError, match="planted") as caught:
        run_mesh((2, 2), rank)
    assert "on rank 1 of 4, the first to fail" in caught.value.__notes__


@pytest.mark.parametrize("shape", [(2,), (2, 0), (1, 2, 3)])
def test_a_mesh_has_two_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"two axes of at least one rank each, got shape=\("):
        run_mesh(shape, lambda mesh: None)


def test_ranks_of_one_world_after_another_trace() -> None:
    """Later threads use what the first to trace has made: torch 2.11 for CUDA, without a GPU, ended the process."""

    def rank(group: object) -> torch.Size:
        with FakeTensorMode():
            return torch.empty(3).shape

    for _ in range(5):
        assert run_ranks(2, rank) == [(3,)] * 2
