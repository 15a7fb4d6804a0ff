"""The report: what was rewritten, why, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp.costs import Estimates
from sp.layout import find_layout
from sp.program import Port, Program
from sp.show.choice import choice_dict, choice_text
from sp.show.entries import attention_dict, attention_row, port_dict, port_text
from sp.show.facts import Attention, attentions, insertion_kinds, insertions
from sp.show.gathers import gathered_bytes
from sp.show.graph import print_program
from sp.show.grid import plan_grid
from sp.show.naming import Naming
from sp.show.words import between, byte_count, table, tokens

if TYPE_CHECKING:
    from sp.show.pictures.gallery import Gallery

_COST_HEADERS = ("sent forward", "sent backward", "work per rank", "balance")


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """What `parallelize` did to one captured call, for `world` ranks and sequences of `lengths` tokens.

        >>> report = sp.inspect(model, (ids,), {"labels": ids}, strategy="zigzag", world_size=2)
        >>> print(report.plan_grid())
        zigzag  causal  world=2  local=12  step 0  step 1      work
        rank 0                             causal  full q[6:]  50.0 %
        rank 1                             causal  full k[:6]  50.0 %
        >>> print(report.graph_table())  # each value, where it lives and why
        after verify: zigzag · … nodes · …
        >>> print(report.insertions_table())
        inserted op       for                         because
        …
        >>> report.length, report.as_dict()["local_lengths"]
        (24, [12, 12])
        >>> page, picture = report.to_html("report.html"), report.to_svg("tiles")  # report.figure("work"): matplotlib

    `print(report)` shows the summary.  program: after all passes.  captured: before them.  Both hold parameters of the
    model itself: send `as_dict()` or `str(report)` to other processes.  estimates: what "auto" has chosen by."""

    program: Program
    world: int
    lengths: tuple[int, ...]
    captured: Program
    estimates: Estimates | None = None

    @property
    def length(self) -> int:
        """Of the first sequence."""
        return self.lengths[0]

    def __str__(self) -> str:
        parts = [self._head(), self._choice(), self._attention_table(), self._insertion_summary(), self._history()]
        return "\n\n".join(part for part in parts if part)

    def __repr__(self) -> str:
        return f"<Report: {self.program.strategy.name}, world {self.world}, {tokens(self.length)}>"

    def graph_table(self) -> str:
        """The rewritten program, one line per value, repeated blocks folded."""
        return print_program(self.program)

    def plan_grid(self) -> str:
        """What every rank computes in every step, one grid for each mask in the model."""
        strategy, world = self.program.strategy, self.world
        kinds = dict.fromkeys((each.site.mask, each.queries, each.keys) for each in self._attentions)
        layout, inner = find_layout(strategy.layout), strategy.shape[-1] if strategy.shape else None
        head: list[str] = []
        if strategy.transport == "alltoall" and kinds:
            layout, joined = layout.nesting(world)
            world, inner = world // joined, None
            where = f" along the outer axis, {strategy.axes[0]}" if strategy.shape else ""
            head = [f"every rank{where}, for its own heads:"]
        grids = (plan_grid(layout.name, mask, queries, world, keys, inner) for mask, queries, keys in kinds)
        return "\n\n".join([*head, *grids])

    def to_html(self, path: str | Path | None = None, estimates: Estimates | None = None) -> str:
        """One page of HTML: plans, work, bytes, and the graph before and after.  It loads nothing and fits into a mail.

        path: where to write it as well.  estimates: of `sp.estimate`, shown as well; default: those of "auto"."""
        return self._gallery.page(self._facts(), estimates or self.estimates, path)

    def to_svg(self, name: str = "plan", path: str | Path | None = None, attention: int = 0) -> str:
        """One picture: "plan", "tiles", "tokens" or "work", of the strategy beside ring, striped and zigzag.

        attention: which, where the model has several kinds.  InputError where there is no such picture."""
        return self._gallery.svg(name, attention, path)

    def figure(self, name: str = "plan", attention: int = 0) -> Any:
        """The same as a matplotlib figure: "plan", "tiles" or "work".  InputError where matplotlib is not installed."""
        return self._gallery.figure(name, attention)

    def _repr_html_(self) -> str:
        """The page, framed, for notebooks."""
        return self._gallery.framed(self._facts(), self.estimates)

    def insertions_table(self) -> str:
        """Every inserted op, one by one."""
        rows = [(each.op, each.value, each.why) for each in insertions(self.program)]
        return table(rows, ("inserted op", "for", "because"))

    def as_dict(self) -> dict[str, Any]:
        """The same facts as plain data, ready for json.  Bytes are those that one rank sends per sequence of the
        batch; lists have one number per rank."""
        strategy = self.program.strategy
        return {
            "strategy": {"name": strategy.name, "layout": strategy.layout, "transport": strategy.transport},
            "choice": None if self.estimates is None else choice_dict(self.estimates, strategy.name),
            "world": self.world,
            "axes": dict(zip(strategy.axes, strategy.shape, strict=True)),
            "length": self.length,
            "local_lengths": self._local_lengths(self.length),
            "lengths": list(self.lengths),
            "inputs": [port_dict(port) for port in self._inputs],
            "outputs": [
                {**port_dict(port), "gathered": size}
                for port, size in zip(self.program.outputs, self._gathered, strict=True)
            ],
            "attentions": [attention_dict(each) for each in self._attentions],
            "insertions": [vars(each) for each in insertion_kinds(self.program)],
            "history": [{"stage": note.stage, "text": self._naming.text(note.text)} for note in self.program.history],
        }

    @cached_property
    def _attentions(self) -> list[Attention]:
        return attentions(self.program, self.lengths, self.world)

    @cached_property
    def _gallery(self) -> Gallery:
        from sp.show.pictures.gallery import Gallery  # here: only who wants pictures needs it

        return Gallery(self.program, self.world, self.lengths, self.captured)

    @cached_property
    def _gathered(self) -> list[int]:
        return gathered_bytes(self.program, self.lengths, self.world)

    @cached_property
    def _naming(self) -> Naming:
        return Naming(self.program)

    @property
    def _inputs(self) -> list[Port]:
        """Those that the caller passes."""
        return [port for port in self.program.inputs if not port.is_added]

    def _local_lengths(self, length: int) -> list[int]:
        layout = find_layout(self.program.strategy.layout)
        return [layout.local_length(length, rank, self.world) for rank in range(self.world)]

    def _sequence_rows(self, number: int) -> list[tuple[str, str]]:
        sequence, length = self.program.sequences[number], self.lengths[number]
        local, name = self._local_lengths(length), "sequence" if number == 0 else f"sequence {number + 1}"
        longest = f" to {sequence.longest:,}" if sequence.longest else ""
        return [
            (name, f"{tokens(length)}, {between(min(local), max(local))} on each rank"),
            ("captured for", f"lengths from {sequence.shortest}{longest}"),
        ]

    def _head(self) -> str:
        return table(self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        strategy = self.program.strategy
        sequences = [row for number in range(len(self.lengths)) for row in self._sequence_rows(number)]
        return [
            ("strategy", f"{strategy.name} = {strategy.layout} layout + {strategy.transport} transport"),
            ("world", f"{self.world} rank{'' if self.world == 1 else 's'}{self._axes()}"),
            *sequences,
            ("inputs", ", ".join(map(port_text, self._inputs))),
            ("outputs", ", ".join(map(port_text, self.program.outputs, self._gathered))),
        ]

    def _axes(self) -> str:
        """Of a mesh of two axes."""
        axes = zip(self.program.strategy.axes, self.program.strategy.shape, strict=True)
        named = " × ".join(f"{name} {size}" for name, size in axes)
        return f" = {named}" if named else ""

    def _choice(self) -> str:
        return "" if self.estimates is None else choice_text(self.estimates, self.program.strategy.name)

    def _attention_table(self) -> str:
        if not self._attentions:
            return "no attention along the sequence"
        headers = ("attention", "mask", "heads", "kernel", *_COST_HEADERS, "why")
        rows = [attention_row(each) for each in self._attentions]
        forward = sum(each.count * max(each.costs.forward) for each in self._attentions)
        backward = sum(each.count * max(each.costs.backward) for each in self._attentions)
        total = f"{byte_count(forward)} forward and {byte_count(backward)} backward"
        note = f"Sent: by the busiest rank, for one sequence of the batch; {total} in all."
        if axes := self.program.strategy.axes:
            outer = (max(each.costs.outer_forward) + max(each.costs.outer_backward) for each in self._attentions)
            counts = (each.count for each in self._attentions)
            slow = sum(count * sent for count, sent in zip(counts, outer, strict=True))
            note += f"\nOf both, {byte_count(slow)} along the outer axis, {axes[0]}."
        work = "Work: least, mean and most of all ranks; balance: mean / most."
        if any(each.site.score.visible or each.site.score.bias for each in self._attentions):
            work += "\nMasks of data hide more when the model runs: blocks that they hide are skipped."
        if any(any(each.costs.visited) for each in self._attentions):
            note += "\n(q): queries travel and not keys, which takes fewer bytes."
        return f"{table(rows, headers, right=(4, 5, 7))}\n{note}\n{work}"

    def _insertion_summary(self) -> str:
        rows = [(each.op, str(each.count), each.example, each.why) for each in insertion_kinds(self.program)]
        return table(rows, ("inserted op", "count", "for example for", "because"), right=(1,))

    def _history(self) -> str:
        rows = [(note.stage, self._naming.text(note.text)) for note in self.program.history]
        return table(rows, ("pass", "what it did"))
