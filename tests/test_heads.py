import pytest

from sp.heads import share_heads


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (5, 1), (6, 2), (6, 3), (8, 8), (32, 8), (12, 4)])
def test_each_head_is_on_one_rank_with_its_key_head(heads: int, groups: int, world: int) -> None:
    shares = share_heads(heads, groups, world)
    assert [head for share in shares for head in share.heads] == list(range(heads))
    assert max(len(share.heads) for share in shares) - min(len(share.heads) for share in shares) <= 1
    for share in shares:
        needed = [head // (heads // groups) for head in share.heads]
        assert [share.groups[pick] for pick in share.picks] == needed
        assert set(share.groups) == set(needed)
        assert share.grouped == (len({needed.count(group) for group in needed}) <= 1)


def test_groups_of_two_sizes() -> None:
    first, second, third = share_heads(8, 2, 3)
    assert (first.picks, second.picks, third.picks) == ((0, 0), (0, 0, 1), (0, 0, 0))
    assert [share.grouped for share in (first, second, third)] == [True, False, True]
