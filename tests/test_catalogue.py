"""docs/errors.md is what the sources say, and each of its messages is read by a test."""

from tests.catalogue import PATH, Message, messages, page, read_by_tests, unread

# Second nets: what other passes refuse or rewrite first, in every model that was tried.
NETS = {
    "an operand has … dims, its rule says …",
    "it joins an empty tensor of one dim to the sequence",
    "it selects a position that is computed",
    "its start … counts from the front or from the back, depending on the length",
    "it changes memory that other values share in ways unknown to sp",
}


def test_the_page_is_up_to_date() -> None:
    assert PATH.read_text("utf-8") == page(), "run `make errors`"


def test_each_message_is_read_by_a_test() -> None:
    left = unread(messages(), read_by_tests())
    assert not [f"{each.place}: {each.found}" for each in left if each.found not in NETS]


def test_a_message_that_no_test_reads_is_found() -> None:
    known = Message("InputError", "the … of a moon is … of cheese", "", "", "sp/moon.py:1")
    assert unread([known], ["made of stone", "the size of a planet"]) == [known]
    assert not unread([known], ["size of a moon is 3"])
