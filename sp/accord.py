"""Accord: what all ranks of a parallelized model have agreed on, call after call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from sp.errors import SpError
from sp.executable import Executable
from sp.fitting import check_fit
from sp.gradients import gradients_text, gradients_word
from sp.granted import Granted
from sp.handshake import Handshake, said_of, worded
from sp.inventory import Inventory
from sp.options import Options
from sp.request import Request
from sp.runtime.agreement import Statement
from sp.values import Values, to_be_compared, whole_tensors


@dataclass
class Accord:
    """model: one rank's.  calls: those that all ranks have made alike, numbered in order, by their keys.
    granted, values: of the model, as they were at the last call."""

    model: nn.Module
    calls: dict[str, int] = field(default_factory=dict[str, int])
    granted: Granted = field(default_factory=Granted)
    values: Values = field(default_factory=Values)

    def on_call(
        self,
        shake: Handshake,
        given: tuple[Sequence[Any], Mapping[str, Any]],
        options: Options,
        executables: Sequence[Executable],
        refusal: SpError | None,
    ) -> tuple[Request, list[int] | None]:
        """The call, and how many tokens each rank holds of it where inputs are local; every rank raises if any rank's
        call does not fit.  refusal: what this rank has to say in place of a call."""
        request, failure, held = None, None, Inventory.of(self.model)
        tensors = whole_tensors(held)
        try:
            if refusal is not None:
                raise refusal
            request = Request.of(self.model, *given, options.sequence_dim, self.granted.state(held))
            check_fit(request, options, shake.world)
            if known := next((each for each in executables if each.key == request.key), None):
                known.check_indices(request)
            statement = said_of(request, options, executables, self.calls)
            gradients = gradients_word(held.parameters.values(), options.sync_gradients)
            changes = self.values.changes(tensors, request.state)
            statement = replace(statement, options=options.said, gradients=gradients, changes=changes)
        except Exception as error:  # noqa: BLE001 - raised, once the others know
            failure, statement = error, Statement(options=options.said, error=worded(error))
        statements = shake.exchange(statement, failure, lambda name: self._text(name, request, options))
        assert request is not None
        if to_be_compared([said.changes for said in statements]):
            shake.compare_values(self.values, tensors, request.state)
        self.calls.setdefault(request.key, len(self.calls))
        if not options.local_inputs or request.past is not None:
            return request, None
        return request, [int(said.length) for said in statements]

    def _text(self, name: str, request: Request | None, options: Options) -> str:
        """What stands behind a hash in the statement of a call."""
        if name == "gradients":
            return gradients_text(self.model.named_parameters(), options.sync_gradients)
        assert request is not None, "ranks that have no request say so"
        return request.text if name == "call" else request.state
