"""The report: files of results as one self-contained page."""

from transfuse.report.page import build

__all__ = ["build"]
