"""All families of the zoo, by name."""

from __future__ import annotations

from importlib.util import find_spec

from tests.zoo.decoders import DECODERS
from tests.zoo.encoders import ENCODERS, SEQ2SEQS
from tests.zoo.family import Family


def _trunks() -> tuple[Family, ...]:
    """Those of `diffusers`, where it is installed."""
    if find_spec("diffusers") is None:
        return ()
    from tests.zoo.trunks import TRUNKS

    return TRUNKS


FAMILIES: dict[str, Family] = {family.name: family for family in (*DECODERS, *ENCODERS, *SEQ2SEQS, *_trunks())}
