"""What a figure was measured on; it stands beside every figure that is kept."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
BUSY = 0.5  # runnable processes before a benchmark starts any


def facts() -> dict[str, object]:
    """Date, processor, cores, versions and load, ready for json."""
    found: dict[str, object] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": CORES,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": load(),
    }
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return found


def words(found: dict[str, object]) -> str:
    """The same in one line."""
    chip = found.get("gpu") or f"{found['cores']} cores of {found['processor']}"
    return f"{str(found['date'])[:10]}, {chip}, torch {found['torch']}, load {found['load']}"


def load() -> float:
    """Runnable processes, averaged over the last minute."""
    return round(os.getloadavg()[0], 1)


def fitting_worlds() -> tuple[int, ...]:
    """Powers of two up to the number of cores; 2 at least, where ranks then share a core."""
    return tuple(world for world in (2, 4, 8, 16, 32) if world <= max(2, CORES))


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
