"""Saved tensors: what a model does, while it is traced, with what autograd keeps for backward.

    with torch.utils.checkpoint …: y = block(x)      y's ops are marked: to be computed again in backward
    with save_on_cpu(): y = block(x)                 refused by `Witness`: nothing of it would be left in the graph

Both push hooks on one stack of torch's; `torch.export` drops them without a word.  Hooks that the caller opens around
the call of the model are his: they work on the rewritten graph, too, and tracing does not see them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import saved_tensors_hooks

Pack = Callable[[Tensor], Any]
_KEY = "sp_checkpoint"


def _itself(x: Tensor) -> Tensor:
    return x


def callers_hooks_aside() -> AbstractContextManager[None]:
    """For tracing: what is kept meanwhile is nobody's.  Opens none if there are none, as torch.func bars them."""
    return nullcontext() if _hook_now() is None else saved_tensors_hooks(_itself, _itself)


def _hook_now() -> Pack | None:
    """What autograd would hand a tensor to that it keeps, if the model has opened such hooks."""
    bindings: Any = torch._C  # private, and without stubs; `torch.compile` asks the same
    hooks = bindings._autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None or hooks[0] is _itself else hooks[0]


def _is_of_checkpoint(pack: Pack) -> bool:
    return pack.__module__ == "torch.utils.checkpoint"


def has_strange_hooks() -> bool:
    """Whether the model has opened hooks that are not those of `torch.utils.checkpoint`."""
    pack = _hook_now()
    return pack is not None and not _is_of_checkpoint(pack)


class Checkpoints:
    """Numbers the calls of `torch.utils.checkpoint` during one trace."""

    def __init__(self) -> None:
        self.seen: list[Pack] = []

    def mark(self) -> dict[str, str]:
        """For `torch.fx.traceback.annotate`, the mark of what is called now; nothing outside of checkpoints."""
        pack = _hook_now()
        if pack is None or not _is_of_checkpoint(pack):
            return {}
        if not any(pack is known for known in self.seen):
            self.seen.append(pack)
        return {_KEY: f"checkpoint {next(at for at, known in enumerate(self.seen) if known is pack)}"}


def checkpoint_of(node: fx.Node) -> str:
    """Of which checkpoint an op is part, "" of none."""
    return node.meta.get("custom", {}).get(_KEY, "")


def put_into_checkpoint(node: fx.Node, name: str) -> None:
    node.meta = {**node.meta, "custom": {**node.meta.get("custom", {}), _KEY: name}}
