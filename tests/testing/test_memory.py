"""Bytes of tensors alive at once."""

import torch

from sp.testing.memory import most_alive_bytes

MIB = 2**20


def one() -> torch.Tensor:
    return torch.ones(MIB // 4)


def test_tensors_alive_together_add_up():
    assert 3 * MIB <= most_alive_bytes(lambda: [one(), one(), one()]) < 3.5 * MIB


def test_tensors_one_after_another_do_not():
    def step():
        for _ in range(3):
            one()

    assert MIB <= most_alive_bytes(step) < 1.5 * MIB
