"""The machine is a package of its own: it imports nothing of the judge, and NumPy is enough."""

import ast
import subprocess
import sys
from pathlib import Path

import attnverify.ptx

ROOM = Path(attnverify.ptx.__file__).parent
ALLOWED = {"attnverify", "numpy"} | sys.stdlib_module_names
OF_LAUNCHERS = {"torch", "triton", "ml_dtypes", "cupy"}


def imported(file: Path) -> set[str]:
    """The modules that a file names in its imports, whole."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def foreign(file: Path) -> set[str]:
    """What a file imports and may not."""
    may = ALLOWED | (OF_LAUNCHERS if "launchers" in file.parts else set())
    return {
        name
        for name in imported(file)
        if name.split(".")[0] not in may
        or (name.startswith("attnverify") and not name.startswith("attnverify.ptx"))
    } - {"attnverify"}


def test_the_machine_imports_nothing_of_the_judge() -> None:
    wrong = {str(file): foreign(file) for file in ROOM.rglob("*.py") if foreign(file)}
    assert not wrong


def test_an_import_of_the_judge_would_be_noticed(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("import torch\nfrom attnverify.judge import case\nimport attnverify.ptx.kernel")
    assert foreign(file) == {"torch", "attnverify.judge"}


def test_a_kernel_runs_where_numpy_alone_can_be_imported() -> None:
    program = """
import sys
class Only:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "triton", "cupy", "ml_dtypes", "scipy", "hypothesis"):
            raise ImportError(name)
sys.meta_path.insert(0, Only())
import numpy as np
from attnverify import ptx
text = ".version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry k(.param .u64 o) {"
text += ".reg .b64 %d; ld.param.u64 %d, [o]; st.global.u32 [%d], 5; ret; }"
out = np.zeros(1, np.uint32)
ptx.load(text)["k"].launch(1, 1, [out])
judge = [name for name in sys.modules if name.startswith("attnverify.")]
print(out[0], [name for name in judge if not name.startswith("attnverify.ptx")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "5 []\n", done.stderr + done.stdout
