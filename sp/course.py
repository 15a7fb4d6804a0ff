"""Course: where a pass through a chain of layers stands.

    layer 0 → layer 1 → layer 2       cuts · works on shards · gathers
    layer 1 → layer 2                 refused: it would take the whole sequence for this rank's tokens
    layer 0 → layer 1, layer 0 → …    refused: what the first pass has left are shards, taken for the whole by the model

A model that skips layers at random (layerdrop) skips the first one and the last one, too.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from sp.errors import InputError


@dataclass
class Course:
    """Of one chain, on one rank.  at: the layer that has run last; None before the first one and behind the last."""

    layers: int
    at: int | None = None


@dataclass(frozen=True)
class Place:
    """A layer's place in its chain."""

    course: Course
    number: int

    def check(self) -> None:
        """InputError where this layer may not be next.  Layers that backward computes again run by themselves."""
        course, first = self.course, not self.number
        if _in_backward() or first == (course.at is None):
            return
        found = (
            f"a pass through a chain of {course.layers} layers has ended behind layer {course.at}"
            if first
            else f"layer {self.number} of a chain of {course.layers} is called, and no layer 0 before it"
        )
        course.at = None
        raise InputError(
            found,
            needed="the first layer, which cuts the sequence, in each pass, and the last one, which gathers it",
            remedy="skip neither (layerdrop=0), or parallelize each layer by itself, or the module around them",
        )

    @contextmanager
    def passed(self) -> Generator[None]:
        """Around the layer: the pass goes on behind it, or is over where it fails."""
        if _in_backward():
            yield
            return
        try:
            yield
        except BaseException:
            self.course.at = None
            raise
        self.course.at = self.number if self.number < self.course.layers - 1 else None


def passing(place: Place | None) -> AbstractContextManager[None]:
    """Around a call of what is a layer of a chain, or none."""
    return nullcontext() if place is None else place.passed()


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
