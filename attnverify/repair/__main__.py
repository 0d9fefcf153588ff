"""``python -m attnverify.repair FILE DTYPE FOLDER NAME BEGIN SECONDS``: where changes are tried."""

import sys

from attnverify.repair.search import main

main(*sys.argv[1:])
