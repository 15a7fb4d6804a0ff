"""Validation by running: what `sp.check` and `validate=True` do."""

from sp.validation.check import check_call
from sp.validation.report import CheckReport, Row

__all__ = ["CheckReport", "Row", "check_call"]
