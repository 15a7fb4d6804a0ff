"""All ops of fuzzed programs, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.fuzz.op import Op
from tests.fuzz.ops_along import ALONG
from tests.fuzz.ops_attention import ATTENTION
from tests.fuzz.ops_features import FEATURES
from tests.fuzz.ops_ids import IDS
from tests.fuzz.ops_losses import LOSSES
from tests.fuzz.ops_moves import MOVES
from tests.fuzz.ops_writes import WRITES

_TABLES = (FEATURES, MOVES, ALONG, ATTENTION, IDS, LOSSES, WRITES)
OPS: Mapping[str, Op] = {name: op for table in _TABLES for name, op in table.items()}
assert len(OPS) == sum(map(len, _TABLES)), "two ops of one name"
# Drawn from a list of each table, in which an op stands as often as it weighs.
GROUPS: Sequence[Sequence[str]] = [[name for name, op in table.items() for _ in range(op.weight)] for table in _TABLES]
# … or by the form of their first operand.
READERS: Mapping[str, Sequence[str]] = {
    form: [name for names in GROUPS for name in names if OPS[name].signature.operands[0][0] == form]
    for form in {op.signature.operands[0][0] for op in OPS.values()}
}
