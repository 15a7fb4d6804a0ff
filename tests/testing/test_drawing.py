"""Drawn inputs are like their example."""

import torch

from sp.testing.drawing import draw


def test_shape_dtype_and_elements():
    ids = torch.tensor([[3, 5, 8], [3, 5, 8]])
    drawn = draw(ids, {1: 50})
    assert drawn.shape == (2, 50)
    assert set(drawn.flatten().tolist()) == {3, 5, 8}
    assert draw(ids, {}).shape == (2, 3)
    assert draw(torch.tensor([True]), {0: 4}).dtype == torch.bool


def test_floats_stay_near_the_example_and_differ():
    drawn = draw(torch.full((4,), 2.0, dtype=torch.float64), {0: 100})
    assert drawn.min() >= 2
    assert drawn.max() <= 2.002
    assert drawn.unique().numel() == 100


def test_a_generator_makes_it_the_same_everywhere():
    x = torch.randn(2, 9)
    one, two = (draw(x, {1: 20}, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)


def test_an_empty_example():
    assert draw(torch.empty(0, 3), {1: 7}).shape == (0, 7)
    assert torch.equal(draw(torch.empty(2, 0), {1: 3}), torch.zeros(2, 3))
