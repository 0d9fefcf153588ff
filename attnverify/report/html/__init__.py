"""
Pages: one file of HTML that needs nothing beside it, for people who would rather look than read.
"""

from attnverify.report.html.run_page import report_page

__all__ = ["report_page"]
