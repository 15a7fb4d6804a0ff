"""Measurements, each beside the bound that it cannot pass: `python -m benchmarks`, see docs/benchmarks.md."""
