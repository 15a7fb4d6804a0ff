"""Pieces at work: each reads its parameters when it runs, and pieces of equal code are compiled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from sp.fsdp import Hooks
from sp.passes.pieces import Piece, Pieces


@dataclass(frozen=True)
class Read:
    """Where a piece finds a parameter or a buffer: `name` of the model's module at `path`; else it is a constant."""

    path: str
    name: str
    constant: Tensor | None = None

    @staticmethod
    def of(target: str, bound: fx.GraphModule, model: nn.Module) -> Read:
        """`target`: as the bound graph calls it.  Constants made by tracing have no place in the model."""
        path, _, name = target.rpartition(".")
        own = path.removeprefix("model").removeprefix(".")
        if (path == "model" or path.startswith("model.")) and hasattr(model.get_submodule(own), name):
            return Read(own, name)
        return Read("", "", getattr(bound.get_submodule(path), name))

    def now(self, model: nn.Module) -> Tensor:
        return getattr(model.get_submodule(self.path), self.name) if self.constant is None else self.constant


class RunningPiece(nn.Module):
    """Calls the code of a piece on what the model holds at that moment, inside of the hooks of the piece's block."""

    run: Callable[..., Any]
    reads: Sequence[Read]
    model: nn.Module
    path: str

    def __init__(self, run: Callable[..., Any], reads: Sequence[Read], model: nn.Module, path: str) -> None:
        super().__init__()
        self.__dict__.update(run=run, reads=reads, model=model, path=path)  # not registered: they are not its own

    def forward(self, *values: Any) -> Any:
        if not self.path:
            return self._run(*values)
        return Hooks(self.model.get_submodule(self.path)).around(self._run, *values)

    def _run(self, *values: Any) -> Any:
        return self.run(*(read.now(self.model) for read in self.reads), *values)


def assemble(
    parts: Pieces, bound: fx.GraphModule, model: nn.Module, compiled: Callable[[fx.GraphModule], Callable[..., Any]]
) -> fx.GraphModule:
    """A module that runs the pieces in order.  `compiled` is called once for each code."""
    codes = {id(piece.code): piece.code for piece in parts.pieces}
    runs = {key: compiled(code) for key, code in codes.items()}

    def running(piece: Piece) -> RunningPiece:
        reads = [Read.of(target, bound, model) for target in piece.reads]
        return RunningPiece(runs[id(piece.code)], reads, model, piece.path)

    modules = {f"piece_{number}": running(piece) for number, piece in enumerate(parts.pieces)}
    return fx.GraphModule(modules, parts.graph)
