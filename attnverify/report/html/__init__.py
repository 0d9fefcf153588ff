"""
Pages: one file of HTML that needs nothing beside it, for people who would rather look than read.
"""

from attnverify.report.html.run_page import framed_page, report_page

__all__ = ["framed_page", "report_page"]
