"""The makers of records are the report's."""

from tests.report.conftest import lab

__all__ = ["lab"]
