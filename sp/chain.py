"""Chains: layers that a model calls one after another, each parallelized, with the sequence on its ranks between them.

    vit.layers = sp.parallelize_chain(vit.layers)

    hidden states, whole → layer 0 → shards → layer 1 → shards → … → last layer → hidden states, whole

For models whose sequence is born inside, from an image or a spectrogram, and whose layers are a list of modules rather
than one module with a forward of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from sp.api import parallelize
from sp.course import Course, Place
from sp.errors import StrategyError
from sp.given import check_kind
from sp.mesh import Mesh
from sp.passes.input_dims import SequenceDim


def parallelize_chain(
    layers: Iterable[nn.Module],
    strategy: str = "striped",
    *,
    mesh: Mesh = None,
    sequence_dim: SequenceDim = 1,
    sync_gradients: bool = True,
    compile: bool | Literal["blocks"] | Mapping[str, Any] = True,  # noqa: A002 - torch's own word for it
    kernel: str | None = None,
) -> nn.ModuleList:
    """The same layers, to be put in their place: names, parameters and what they compute stay as they are.

        >>> layers = sp.parallelize_chain([nn.Linear(4, 8), nn.Linear(8, 4)], compile=False)
        >>> nn.Sequential(*layers)(torch.ones(1, 6, 4)).shape
        torch.Size([1, 6, 4])

    Each layer must be called on what the one before it has returned, and on nothing else that holds the sequence:
    between them a rank holds its own tokens.  What the first layer takes and the last one returns is whole, with whole
    gradients, the same on every rank.  The options are those of `sp.parallelize`.

    StrategyError for an empty chain, and for what `parallelize` refuses.  A call raises InputError where a pass leaves
    out the first layer; where the pass before has left out the last one, too."""
    check_kind("layers", layers, (Iterable,), "a list of modules")
    given = list(layers)
    if not given:
        raise StrategyError("there are no layers to parallelize", needed="a list of modules")
    last, course = len(given) - 1, Course(len(given))
    made = [
        parallelize(
            layer,
            strategy,
            mesh=mesh,
            sequence_dim=sequence_dim,
            inputs="local" if place else "global",
            outputs="global" if place == last else "local",
            sync_gradients=sync_gradients,
            compile=compile,
            kernel=kernel,
        )
        for place, layer in enumerate(given)
    ]
    for place, layer in enumerate(made):
        layer.__dict__["options"] = replace(layer.options, place=Place(course, place))
    return nn.ModuleList(made)
