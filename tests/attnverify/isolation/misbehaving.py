"""Backends that misbehave: in one line, which stands here, or in a file of misbehaving_backends."""

import atexit
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from attnverify import ROOT

HERE = ROOT / "tests" / "misbehaving_backends"

BACKEND = '''"""{what}"""

{imports}from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    {body}
    return right(x)
'''

WHERE_IT_SHOULD_REFUSE = 'if x.dtype.kind == "i":\n    '

LINES = {
    "aborts": (
        "The C library's way out, as after a failed assertion.",
        "os",
        "if x.shape[-1] == 65:\n    os.abort()",
    ),
    "asks": ("Asks somebody at the terminal.", "", 'input("go on? ")'),
    "at_exit": (
        "Wants to sleep at the end, once for each call.",
        "atexit time",
        "atexit.register(time.sleep, 1000)",
    ),
    "changes_directory": ("Goes elsewhere.", "os", 'os.chdir("/")'),
    "changes_environment": (
        "Sets a variable for everybody.",
        "os",
        'os.environ["OMP_NUM_THREADS"] = "64"',
    ),
    "changes_error_state": ("Silences NumPy.", "numpy", 'np.seterr(divide="ignore")'),
    "changes_print_options": (
        "Prints two digits from now on.",
        "numpy",
        "np.set_printoptions(precision=2)",
    ),
    "children": (
        "Leaves a child process behind at each call.",
        "subprocess",
        'subprocess.Popen(["sleep", "98765"])',
    ),
    "closes_everything": (
        "Closes every descriptor, also those of others.",
        "os",
        WHERE_IT_SHOULD_REFUSE + "os.closerange(0, 1000)",
    ),
    "closes_stdout": ("Closes descriptors 1 and 2.", "os", "os.closerange(1, 3)"),
    "closes_sys_stdout": ("Closes Python's stdout.", "sys", "sys.stdout.close()"),
    "default_dtype": (
        "Every new tensor is float64 from now on.",
        "torch",
        "torch.set_default_dtype(torch.float64)",
    ),
    "deletes_itself": ("Takes its own module away.", "sys", "sys.modules.pop(__name__, None)"),
    "filters": ("Silences all warnings.", "warnings", 'warnings.simplefilter("ignore")'),
    "flushes": (
        "Subnormal numbers are 0 from now on, as with -ffast-math.",
        "torch",
        "torch.set_flush_denormal(True)",
    ),
    "forks": ("Forks, and both go on.", "os", "os.fork()"),
    "grad_mode": (
        "No gradients from now on, for anybody.",
        "torch",
        "torch.set_grad_enabled(False)",
    ),
    "handlers": (
        "Takes the signals for itself.",
        "signal",
        "signal.signal(signal.SIGTERM, lambda *_: None)",
    ),
    "kills_its_group": (
        "Sends a signal to its whole process group.",
        "os signal",
        WHERE_IT_SHOULD_REFUSE + "os.killpg(0, signal.SIGTERM)",
    ),
    "kills_itself": (
        "What the system does when memory runs out.",
        "os signal",
        WHERE_IT_SHOULD_REFUSE + "os.kill(os.getpid(), signal.SIGKILL)",
    ),
    "patches_numpy": ("Replaces a function of NumPy.", "numpy", "np.exp = np.exp2"),
    "recursion_limit": ("Allows itself more depth.", "sys", "sys.setrecursionlimit(123_456)"),
    "replaces_module": (
        "Puts something else in NumPy's place.",
        "sys",
        'sys.modules["numpy"] = object()',
    ),
    "segfault": (
        "Reads address 0 where there are 33 columns.",
        "ctypes",
        "if x.shape[-1] == 33:\n    ctypes.string_at(0)",
    ),
    "stops": (
        "Stops its own process, so that it does not even get its signals.",
        "os signal",
        WHERE_IT_SHOULD_REFUSE + "os.kill(os.getpid(), signal.SIGSTOP)",
    ),
    "sys_path": (
        "Puts a directory in front of everybody's imports.",
        "sys",
        'sys.path.insert(0, "/nowhere")',
    ),
    "threads": (
        "Leaves a thread behind at each call.",
        "threading",
        "threading.Thread(target=threading.Event().wait).start()",
    ),
}
"""What it does, the modules that takes, and the line."""


@cache
def path_of(name: str) -> str:
    """The file of a backend, written where it is a line of the table."""
    if name not in LINES:
        return str(HERE / f"{name}.py")
    what, modules, line = LINES[name]
    imports = [f"import {one}{' as np' * (one == 'numpy')}\n" for one in modules.split()]
    text = BACKEND.format(
        what=what,
        imports="".join([*imports, "\n" * bool(imports)]),
        body=line.replace("\n", "\n    "),
    )
    path = folder_of_all() / f"{name}.py"
    path.write_text(text)
    return str(path)


@cache
def folder_of_all() -> Path:
    """A folder that goes with this process."""
    folder = mkdtemp(prefix="misbehaving-")
    atexit.register(rmtree, folder, ignore_errors=True)
    return Path(folder)
