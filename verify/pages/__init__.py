"""
Pages: one file of HTML that needs nothing beside it, for people who would rather look than read.
"""

from verify.pages.report import report_page
from verify.pages.shell import Section, page

__all__ = ["Section", "page", "report_page"]
