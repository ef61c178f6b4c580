"""What people read: tables for the terminal, Markdown, LaTeX and CSV, and one self-contained HTML page."""

from assay.core.report.page import write_report
from assay.core.report.tables import show

__all__ = ["show", "write_report"]
