"""How printed pages word things."""

import pytest
import torch

from sp.show.words import between, byte_count, dtype_name, path_range, table


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (448 * 1024, "448 KiB"),
        (2**20 - 1, "1024 KiB"),
        (3 * 2**20, "3.0 MiB"),
        (5 * 2**40, "5.0 TiB"),
        (2**53, "8192 TiB"),
    ],
)
def test_byte_count(count: int, text: str) -> None:
    assert byte_count(count) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "3"),
        ([0, 1], "{0, 1}"),
        ([0, 3, 6], "{0, 3, 6}"),
        (range(32), "{0…31}"),
        (range(0, 32, 2), "{0, 2 … 30}"),
        ([1, 2, 4, 5], "{1, 2, 4, 5}"),
        ([n for n in range(30) if n % 6 != 5], "{0, 1, 2 … 28}"),
        ([3, 2, 1, 0], "{3, 2, 1, 0}"),
    ],
)
def test_path_range(numbers: list[int], text: str) -> None:
    assert path_range(f"layers.{number}.attention" for number in numbers) == f"layers.{text}.attention"


def test_paths_that_differ_in_words() -> None:
    assert path_range(["encoder.0.a", "decoder.0.a"]) == "encoder.0.a … decoder.0.a"
    assert path_range(["encoder", "encoder.layers.0"]) == "encoder … encoder.layers.0"
    assert path_range(["block", "block"]) == "block"


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (torch.float32, "f32"),
        (torch.bfloat16, "bf16"),
        (torch.int64, "i64"),
        (torch.uint8, "u8"),
        (torch.bool, "bool"),
        (torch.complex64, "c64"),
        (torch.float8_e4m3fn, "f8_e4m3fn"),
    ],
)
def test_dtype_name(dtype: torch.dtype, text: str) -> None:
    assert dtype_name(dtype) == text


def test_table_keeps_numbers_as_text_and_ends_no_line_in_spaces() -> None:
    text = table([("a", "1.50"), ("bbb", "")], right=(1,))
    assert text.splitlines() == ["a    1.50", "bbb"]
    assert table([]) == ""


def test_between() -> None:
    assert (between(512, 512), between(1999, 2000)) == ("512", "1,999 to 2,000")
