"""All ops of fuzzed programs, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz.op import Op
from tests.fuzz.ops_along import ALONG
from tests.fuzz.ops_attention import ATTENTION
from tests.fuzz.ops_features import FEATURES
from tests.fuzz.ops_ids import IDS
from tests.fuzz.ops_losses import LOSSES
from tests.fuzz.ops_moves import MOVES
from tests.fuzz.ops_writes import WRITES

OPS: Mapping[str, Op] = {**FEATURES, **MOVES, **ALONG, **ATTENTION, **IDS, **LOSSES, **WRITES}
