"""
A replay tells the cause that the run told, of a kernel too of which other failures are known.
"""

from pathlib import Path

from attnverify.backends.loader import load
from attnverify.failures.known_failures import read_known_failures
from attnverify.failures.record import FailureRecord
from attnverify.failures.replay import cause_again, known_otherwise
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.judge.case import case_of
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import Options

SDPA = "scaled_dot_product_attention"
KERNEL = f"""
from attnverify import numpy_ref
ARRAYS, PRECISION = "numpy", "wide"

def {SDPA}(query, key, value, mask=None, keep=None, p=0.0):
    unscaled = query * query.dtype.type(query.shape[-1] ** 0.5)
    found = numpy_ref.{SDPA}(unscaled, key, value, mask, keep, p)
    return found if keep is None else 1.5 * found
"""
GRADIENT = f"""
def {SDPA}_grad(d_output, query, key, value, mask=None, keep=None, p=0.0):
    return numpy_ref.{SDPA}_grad(d_output, query, key, value, mask, keep, p)
"""
KNOWN = f"{SDPA} * values when dropout is given : its draw is another's\n"


def test_what_is_known_otherwise_is_left_out_of_a_replay_too(tmp_path: Path) -> None:
    kernel, known = tmp_path / "mine.py", tmp_path / "mine.known-failures.txt"
    kernel.write_text(KERNEL)
    known.write_text(KNOWN)
    (own,) = load(str(kernel)).implementations
    lines = tuple(read_known_failures(known, str(kernel)))
    options = Options("quick", failures=str(tmp_path))
    (finding,) = judge_cell(Cell(own, None, "float32", "values"), options, lines).findings
    assert finding.record and "not scaled (" in str(finding.cause)
    assert str(cause_again(finding.record, own, finding.kind)) == str(finding.cause)
    known.unlink()
    assert str(cause_again(finding.record, own, finding.kind)) != str(finding.cause)


def test_a_line_of_a_function_speaks_of_its_gradient(tmp_path: Path) -> None:
    kernel, known = tmp_path / "mine.py", tmp_path / "mine.known-failures.txt"
    kernel.write_text(KERNEL + GRADIENT)
    known.write_text(f"{SDPA} * gradients when a mask is given : as one knows")
    (own,) = (i for i in load(str(kernel)).implementations if i.operation.is_gradient)
    masked, bare = (
        next(r for r in fixed_cases(f"{SDPA}_grad") if (r.mask is None) == without)
        for without in (False, True)
    )
    records = [
        FailureRecord.of(own, case_of(recipe, "float32"), "gradients") for recipe in (masked, bare)
    ]
    assert [len(known_otherwise(record, own)) for record in records] == [0, 1]
    known.write_text("no line at all")
    assert known_otherwise(records[1], own) == []  # a run says what is wrong with it
