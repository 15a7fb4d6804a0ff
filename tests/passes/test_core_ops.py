"""Every op that torch calls core has a rule, makes a value of nothing, or is refused for a written reason."""

import torch

from sp.passes import rule_table
from sp.passes.refused_ops import REFUSED
from sp.passes.synonyms import SYNONYMS

Overload = torch._ops.OpOverload


def core() -> list[Overload]:
    schemas = torch._C._jit_get_all_schemas()
    names = sorted({schema.name.removeprefix("aten::") for schema in schemas if schema.name.startswith("aten::")})
    packets = [getattr(torch.ops.aten, name) for name in names]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    return [one for one in overloads if torch.Tag.core in one.tags and not one._schema.is_mutable]


def fate(overload: Overload) -> str:
    """Why this op needs no rule, or where its rule is; empty if nobody has thought of it."""
    name = overload._schema.name.replace("::", ".")
    kinds = {
        "in the table": name in rule_table.TABLE,
        "refused": name in REFUSED,
        "a synonym": name in SYNONYMS,
        "a creation": name in rule_table.CREATIONS,
        "pointwise": torch.Tag.pointwise in overload.tags,
        "random": torch.Tag.nondeterministic_seeded in overload.tags,
        "without operands": all("Tensor" not in str(argument.type) for argument in overload._schema.arguments),
        "a number": all("Tensor" not in str(result.type) for result in overload._schema.returns),
    }
    return next((kind for kind, holds in kinds.items() if holds), "")


def test_every_core_op_has_a_fate() -> None:
    overloads = core()
    assert len(overloads) > 150
    assert [str(one) for one in overloads if not fate(one)] == []


def test_an_op_is_refused_or_has_a_rule_not_both() -> None:
    assert not set(REFUSED) & (set(rule_table.TABLE) | set(SYNONYMS))


def test_every_name_is_an_op_of_torch() -> None:
    names = {*rule_table.TABLE, *REFUSED, *SYNONYMS, *rule_table.CREATIONS}
    names = {name for name in names if not name.startswith("sp.")}
    assert [name for name in sorted(names) if not hasattr(torch.ops.aten, name.removeprefix("aten."))] == []


def test_reasons_are_whole() -> None:
    for why, remedy in REFUSED.values():
        assert why
        assert remedy
        assert why[0].islower()
