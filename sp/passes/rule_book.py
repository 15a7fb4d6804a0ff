"""The rule book: rules that people have registered for ops of their own, read before sp's own table.

Ops belong to the process (`torch.library` keeps one list of them), and so do their rules: there is one book, `BOOK`.
Nothing is written into it by an import; `sp.register_rule` does, and what it returns takes the rule out again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sp.errors import RuleError
from sp.passes.rules import Rule


@dataclass(frozen=True)
class Entry:
    """op: as `fxtools.op_name` says it.  text: the rule as it was given, by which two are told apart."""

    op: str
    text: str
    rule: Rule


class RuleBook:
    """Registered rules by op; safe to read while another thread writes."""

    def __init__(self) -> None:
        self._entries: Mapping[str, Entry] = MappingProxyType({})
        self._writing = threading.Lock()

    def find(self, op: str) -> Rule | None:
        entry = self._entries.get(op)
        return entry.rule if entry else None

    def add(self, entry: Entry) -> bool:
        """Whether it is new.  RuleError: the op has another rule."""
        with self._writing:
            known = self._entries.get(entry.op)
            if known is not None and known.text != entry.text:
                raise RuleError(
                    f"{entry.op} has a rule already: {known.text}",
                    needed="one rule for each op",
                    remedy="call .remove() on what register_rule returned for it",
                )
            self._entries = MappingProxyType({**self._entries, entry.op: known or entry})
            return known is None

    def remove(self, entry: Entry) -> None:
        """Nothing happens if it is gone already."""
        with self._writing:
            left = {op: known for op, known in self._entries.items() if known != entry}
            self._entries = MappingProxyType(left)


BOOK = RuleBook()
