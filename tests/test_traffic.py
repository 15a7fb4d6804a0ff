"""What travels in a ring is what takes fewer bytes, counted out."""

import pytest

from sp.traffic import KEYS, QUERIES, Widths, hop_bytes, travellers

GROUPED = Widths(heads=8, groups=2, size=64, value_size=64, item_bytes=2)


def test_bytes_of_a_token() -> None:
    """bf16, sums and lse in float32."""
    assert hop_bytes(KEYS, GROUPED, False) == (2 * 128 * 2, 0)
    assert hop_bytes(KEYS, GROUPED, True) == (2 * 128 * 2, 2 * 128 * 4)
    assert hop_bytes(QUERIES, GROUPED, False) == (8 * 64 * 2, 8 * 65 * 4)
    assert hop_bytes(QUERIES, GROUPED, True) == (8 * (64 * 3 * 2 + 4), 8 * 64 * 4)


@pytest.mark.parametrize("item_bytes", [2, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_attention_of_a_sequence_to_itself(groups: int, item_bytes: int) -> None:
    """Keys travel, but in backward where heads are in no groups and sums are wider than numbers: 5,152 bytes of q,
    out, its gradient and dq for 6,144 of k, v, dk and dv."""
    widths = Widths(8, groups, 64, 64, item_bytes)
    ways = [travellers(4096, 4096, widths, way) for way in (False, True)]
    assert ways == [KEYS, QUERIES if (groups, item_bytes) == (8, 2) else KEYS]


def test_few_queries_travel() -> None:
    assert [travellers(100, keys, GROUPED, False) for keys in (606, 607)] == [KEYS, QUERIES]
    assert [travellers(100, keys, GROUPED, True) for keys in (335, 336)] == [KEYS, QUERIES]
