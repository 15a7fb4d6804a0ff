"""Handshake: what a rank says before a call, and what all ranks conclude from it, before any data is exchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module

import torch
from torch import Tensor

from sp.errors import SpError
from sp.executable import Executable
from sp.options import Options
from sp.request import Request
from sp.runtime.agreement import Statement, check_agreement, checksum, exchange_statements
from sp.runtime.differences import differing_lines, exchange_texts
from sp.runtime.world import World
from sp.values import Values, listed

# What is large is compared on the first calls of each capture; ids and their like, and everything else, on every call.
CONTENT_CHECKS = 3


def versions() -> str:
    return f"sp {import_module('sp').__version__}, torch {torch.__version__}"


def said_of(
    request: Request, options: Options, executables: Iterable[Executable], known: Mapping[str, int]
) -> Statement:
    """What a rank says of a call.  known: calls that all ranks have made alike, numbered, by their keys."""
    local = options.local_inputs
    calls = max((each.calls for each in executables if each.key == request.key), default=0)
    recent = calls < CONTENT_CHECKS
    triples = zip(request.tensors, request.call.kept, request.locals(local), strict=True)
    # New tokens are few, and ranks that have sampled different ones would go on with caches that do not fit.
    new = request.past is not None
    whole = [x for x, kept, part in triples if not part and (recent or (not kept and (new or _is_small(x))))]
    return Statement(
        call=request.shared,
        model=str(known.get(request.key, len(known))),
        shapes=request.shapes(local),
        contents=f"{checksum(whole)} {request.calls()}".strip() if new or not local else "",
        length=str(request.lengths[0]),
    )


def _is_small(x: Tensor) -> bool:
    """A whole number for each token at most: cheap to compare, and what a loader gives."""
    return x.dim() <= 2 and not x.is_floating_point()


@dataclass(frozen=True)
class Handshake:
    """Of one call, on one rank.  device: where the ranks communicate."""

    world: World
    device: torch.device

    def exchange(self, statement: Statement, failure: Exception | None, text: Callable[[str], str]) -> list[Statement]:
        """All ranks' statements.  Raises `failure`, this rank's own, or RankMismatchError, on all ranks or on none.

        text: what stands behind the hash in a field of the statement."""

        def explain(name: str) -> list[str]:
            return differing_lines(exchange_texts(self.world, text(name), self.device))

        statements = exchange_statements(self.world, replace(statement, versions=versions()), self.device)
        if failure is not None:
            raise failure
        check_agreement(statements, self.world.rank, explain)
        return statements

    def compare_values(self, values: Values, tensors: Mapping[str, Tensor], state: str) -> None:
        """RankMismatchError on all ranks where any two hold different parameters or buffers."""
        try:
            text, failure = listed(tensors), None
        except Exception as error:  # noqa: BLE001 - raised, once the others know
            text, failure = "", error
        word = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.exchange(Statement(values=word, error=worded(failure)), failure, lambda _: text)
        values.equal(tensors, state)


def worded(failure: Exception | None) -> str:
    """For the other ranks."""
    if failure is None:
        return ""
    return str(failure) if isinstance(failure, SpError) else f"{type(failure).__name__}: {failure}"
