"""
Bugs that public kernels had in their own history, planted again in copies of today's files, and
what the judge says of each.

    python examples/public_kernels/planted_bugs.py [NAME ...]

A bug counts as found where the run fails and a root cause has the words that name its reason.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from checkouts import VARIABLE, checkout, read

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Bug:
    """
    A bug of a public history.

    told     where it is told, and what it was
    judged   the adapter and options of the run
    reason   what the judge must say
    """

    told: str
    repository: str
    file: str
    replacements: tuple[tuple[str, str], ...]
    judged: tuple[str, ...]
    reason: str


TUTORIAL = "tutorials/06-fused-attention.py"
FLASH = "flash_attn/flash_attn_triton.py"
TIER = """
        BT = 64
        BS = 32
        BK = max(triton.next_power_of_2(K), 16)
        BV = max(triton.next_power_of_2(V), 16)
"""
CAPPED = "min(max(triton.next_power_of_2(V), 16), 64)"
BUGS = {
    "wrong-offset": Bug(
        "triton #6242: the offset of a batch is its number, not its number times N H",
        "triton_learn",
        TUTORIAL,
        (("off_z * (N_CTX * H) + off_h * N_CTX", "off_z + off_h * N_CTX"),),
        ("triton_tutorial.py", "--dtype", "float16", "-k", "values"),
        "race",  # two batches write one place
    ),
    "split-reduction": Bug(
        "flash-linear-attention #941: dq and dk of wide values summed by blocks that overwrite one "
        "another, on GPUs with little shared memory (sm_89) alone",
        "flash-linear-attention",
        "fla/ops/attn/parallel.py",
        ((TIER, TIER.replace("max(triton.next_power_of_2(V), 16)", CAPPED)),),
        ("fla_parallel.py", "--device", "sm_89", "--dtype", "float16", "-k", "gradients"),
        "race",
    ),
    "tail-not-masked": Bug(
        "flash-attention d11341fd: keys behind the last one take part in the softmax",
        "flash-attention",
        FLASH,
        (
            (
                'qk += tl.where((start_n + offs_n)[None, :] < seqlen_k, 0, float("-inf"))',
                "qk += 0",
            ),
        ),
        ("flash_attn_triton.py", "--dtype", "bfloat16", "-k", "values and scaled"),
        "the padding of the last tile seen as keys",
    ),
}


def plant(bug: Bug, folder: Path) -> None:
    """Put a checkout there with one file changed; everything else is linked."""
    place, source = folder / bug.repository, checkout(bug.repository)
    for part in Path(bug.file).parts:
        place.mkdir()
        for other in source.iterdir():
            if other.name != part:
                (place / other.name).symlink_to(other.resolve())
        place, source = place / part, source / part
    place.write_text(read(bug.repository, bug.file, *bug.replacements))


def judge(bug: Bug) -> tuple[bool, str]:
    """Whether the judge has found the bug with its reason, and its root causes."""
    with tempfile.TemporaryDirectory() as folder:
        plant(bug, Path(folder))
        adapter, *options = bug.judged
        line = [sys.executable, "-m", "attnverify", "run", str(HERE / adapter)]
        line += ["-v", "--profile", "quick", "--failures", str(Path(folder, "failures")), *options]
        done = subprocess.run(
            line, capture_output=True, text=True, env=os.environ | {VARIABLE: folder}
        )
    causes = re.findall(r"^  \d+\. .*", done.stdout, re.MULTILINE)
    causes += re.findall(r"^  (?:cause:|the PTX machine saw:|known failures:).*", done.stdout, re.M)
    found = done.returncode == 1 and any(re.search(bug.reason, cause) for cause in causes)
    return found, "\n".join(causes) or done.stdout[-2000:] + done.stderr[-2000:]


if __name__ == "__main__":
    for name in sys.argv[1:] or BUGS:
        found, causes = judge(BUGS[name])
        print(f"{name}: {'found' if found else 'NOT FOUND'}\n{BUGS[name].told}\n{causes}\n")
