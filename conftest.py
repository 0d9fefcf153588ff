"""
The plugins are loaded here, so that the suite runs from a plain checkout too, whatever options it
is given.
"""

pytest_plugins = ["attnverify.plugin", "attnverify.bench.plugin"]
