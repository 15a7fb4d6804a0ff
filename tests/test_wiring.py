"""What `sp.fully_shard` tells FSDP; that the result is right is in test_fsdp.py."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import sp
from sp.models import Llama, LlamaConfig
from sp.testing import ProcessWorld

IDS = torch.arange(13).view(1, 13)


def llama() -> Llama:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=61, layers=1, heads=2, kv_heads=2, width=16)).double()


def backend_without_a_name() -> float:
    """As where nobody told torch which backend to take: then there is one for each kind of device."""
    group = dist.new_group(backend="cpu:gloo")
    assert dist.get_backend(group) != "gloo"
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("sp",))
    loss = sp.fully_shard(llama(), mesh, compile=False)(IDS, labels=IDS).loss
    loss.backward()
    return loss.item()


def test_gloo_is_known_whatever_the_group_is_called(world4: ProcessWorld) -> None:
    right = llama()(IDS, labels=IDS).loss.item()
    assert world4.run(backend_without_a_name) == pytest.approx([right] * 4, rel=1e-12)
