"""The plugin of dask's workers by which the backends' files arrive; only a campaign imports it."""

import io
import shutil
import zipfile
from pathlib import Path
from typing import Any

from distributed import WorkerPlugin


class SentFiles(WorkerPlugin):
    """Files for every worker, unpacked below its own folder and removed with the plugin."""

    def __init__(self, archive: bytes, name: str) -> None:
        self.archive, self.name = archive, name

    def setup(self, worker: Any) -> None:
        """Unpack the files, before the worker is given anything to do."""
        with zipfile.ZipFile(io.BytesIO(self.archive)) as archive:
            archive.extractall(Path(worker.local_directory, self.name))

    def teardown(self, worker: Any) -> None:
        """Remove them."""
        shutil.rmtree(Path(worker.local_directory, self.name), ignore_errors=True)
