"""
Sixteen reports of the last two years, each in a folder: ``wrong.py`` as its reporter would write
it, ``right.py`` repaired, and ``expected.json`` in the form of tests/reports/test_reports.py. They
were written and committed before any of them was judged, by who does not read the diagnosis.
"""
