"""``python -m verify`` is ``verify``."""

import sys

from verify.cli import main

sys.exit(main())
