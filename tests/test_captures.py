"""What is said of captures, through `logging` and so through TORCH_LOGS."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import sp
from sp.models import Llama, LlamaConfig

IDS = torch.zeros(1, 16, dtype=torch.int64)
SCRIPT = """
import torch, sp
from sp.models import Llama, LlamaConfig
sp.inspect(Llama(LlamaConfig(layers=1, width=32)), (torch.zeros(1, 16, dtype=torch.int64),))
"""


@pytest.fixture
def messages() -> Iterator[list[logging.LogRecord]]:
    """All that `sp` logs meanwhile."""
    found: list[logging.LogRecord] = []
    handler, logger = logging.Handler(), logging.getLogger("sp")
    handler.emit = found.append
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.setLevel(before)
    logger.removeHandler(handler)


def test_each_capture_is_logged_and_each_pass_with_what_it_did(messages: list[logging.LogRecord]) -> None:
    model = sp.parallelize(Llama(LlamaConfig(layers=1, width=32)), compile=False)
    model(IDS)
    model(IDS, labels=IDS)
    model(IDS[:, :9])
    captures = [record.getMessage() for record in messages if record.name == "sp.captures"]
    assert [text.rsplit(", ", 1)[0] for text in captures] == [
        "capture 1 of Llama: striped, 16 tokens",
        "capture 2 of Llama: striped, 16 tokens",
    ]
    passes = [record.getMessage() for record in messages if record.name == "sp.passes.manager"]
    assert sum("1 attentions rewritten to striped" in text for text in passes) == 2


def test_torchs_own_switch_shows_it() -> None:
    environment = {**os.environ, "TORCH_LOGS": "+sp"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert "rewritten to striped" in done.stderr
