"""
Run the main job over the code paths, with random seeds, and go on where the file ends.

    python -m tests.machines --file runs.json --runs 20
    python -m tests.machines --file emulated.json --runs 10 --emulated
    python -m tests.machines --file emulated.json --runs 10 --beside runs.json
"""

import argparse
import sys
from pathlib import Path

from tests.machines.main_jobs import WITHOUT_EMULATION, run_beside, run_missing

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
parser.add_argument("--file", type=Path, required=True)
parser.add_argument("--runs", type=int, default=20, help="in all, those of the file included")
parser.add_argument("--emulated", action="store_true", help="with the emulated kernels")
parser.add_argument(
    "--beside", type=Path, help="the emulated kernels alone, with the seeds of this file's jobs"
)

if __name__ == "__main__":
    given = parser.parse_args()
    if given.beside:
        sys.exit(run_beside(given.file, given.runs, given.beside))
    options = () if given.emulated else WITHOUT_EMULATION
    sys.exit(run_missing(given.file, given.runs, options=options))
