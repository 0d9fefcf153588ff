"""
The script of a GPU's first minutes: every command starts without a GPU, a group ends in time, what
was come to is written as it goes, and the profiler's figures stand beside the predicted ones.
"""

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks import first_half_hour as script
from benchmarks import profile

SAYS = [sys.executable, "-c", "print('said')"]
FAILS = [sys.executable, "-c", "raise SystemExit(3)"]
HANGS = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_group_ends_in_time_and_keeps_what_was_said(tmp_path: Path) -> None:
    found = script.run_group("right", [SAYS, FAILS, HANGS, SAYS], 2, tmp_path)
    assert [done.status for done in found] == [0, 3, None, None]
    assert sum(done.seconds for done in found) < 20
    assert Path(found[0].log).read_text() == "said\n"


def test_what_a_command_has_started_ends_with_it(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    later = f"import time, pathlib; time.sleep(1.6); pathlib.Path({str(mark)!r}).touch()"
    starts = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {later!r}])"
    line = [sys.executable, "-c", f"{starts}; time.sleep(60)"]
    script.run_group("right", [line], 1.2, tmp_path)
    time.sleep(1)
    assert not mark.exists()


def test_all_groups_end_in_three_quarters_of_an_hour() -> None:
    assert script.SECONDS <= 9 * 60 and len(script.GROUPS) * script.SECONDS <= 45 * 60


@pytest.mark.parametrize(("line", "status"), [(SAYS, 0), (FAILS, 1), (HANGS, 1)])
def test_the_record_is_written_after_every_group(
    line: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "commands", lambda group, device, out: [line])
    given = ["--out", str(tmp_path), "--seconds", "1.2", "--group", "why", "--group", "fast"]
    assert script.main(given) == status
    told = json.loads((tmp_path / "first-half-hour.json").read_text())
    assert [one["group"] for one in told] == ["why", "fast"]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("group", script.GROUPS)
def test_the_same_modules_are_started_with_a_gpu_and_without(
    device: str, group: str, tmp_path: Path
) -> None:
    found = script.commands(group, device, tmp_path)
    here = script.commands(group, "cpu", tmp_path)
    assert [line[:4] for line in found] == [line[:4] for line in here]


@pytest.mark.thorough
@pytest.mark.parametrize("group", script.GROUPS)
def test_every_group_runs_to_its_end_without_a_gpu(group: str, tmp_path: Path) -> None:
    """gpu-report ends with status 2 where a step asks for a GPU, and none fails."""
    (*found,) = script.run_group(group, script.commands(group, "cpu", tmp_path), 540, tmp_path)
    assert {done.status for done in found} <= {0, 2}, [Path(x.log).read_text() for x in found]


TOLD = """==PROF== Profiling "forward": 0%....100%
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","other","","smsp__inst_issued.sum","inst","1"
"1","7","forward","","smsp__inst_issued.sum","inst","245,366,784"
"1","7","forward","","sm__throughput.avg.pct_of_peak_sustained_elapsed","%","61.5"
"2","7","forward","","smsp__inst_issued.sum","inst","9"
"""


def test_the_first_launch_of_the_kernel_is_read() -> None:
    found = profile.read_counts(TOLD, "forward")
    assert found == {profile.COUNT: 245366784.0, profile.UTILISATION: 61.5}
    assert profile.read_counts(TOLD, "backward_key") == profile.read_counts("no table", "x") == {}


def test_measured_slots_are_of_the_same_pairs_as_the_predicted_ones() -> None:
    """As many instructions as 8 x 32 x 32 x 32 tiles of 234 clocks on four schedulers are."""
    issued = 8 * 32 * 32 * 32 * 234 * 4
    of = profile.sizes("cuda")
    assert profile.measured_slots(issued, profile.KERNELS["forward"], of) == 234
    assert profile.measured_slots(issued / 2, profile.KERNELS["forward, ALiBi"], of) == 234


def test_figures_stand_beside_each_other_and_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = profile.Profiled("forward", 234.0, 251.5, 61.5)
    path = tmp_path / "why.json"
    assert profile.main(["--record", str(path)], lambda name, device: found) == 0
    assert "    234.0    251.5     61.5" in capsys.readouterr().out
    assert len(json.loads(path.read_text())) == len(profile.KERNELS)
    lost = profile.Profiled("forward", 234.0, why_not="ncu told nothing of the kernel")
    assert profile.main([], lambda name, device: lost) == 1


@pytest.mark.parametrize("name", ["forward, ALiBi", "gradient of keys, Transformer-XL"])
def test_a_kernel_is_called_without_a_gpu(name: str) -> None:
    profile.run_kernel(name, "cpu")
