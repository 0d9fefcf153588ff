"""The gallery of real bugs: each has a thread, lines, and what two tests said of it when run."""

import json
import sys

import pytest

from attnverify import ROOT
from attnverify.faults.registry import read_faults
from attnverify.report.json_report import json_text

sys.path.insert(0, str(ROOT / "docs" / "_ext"))
sys.path.insert(0, str(ROOT / "docs" / "data"))

import measure_gallery
from book import gallery

BUGS = [bug["fault"] for bug in gallery.read_bugs()]
each_bug = pytest.mark.parametrize("name", BUGS)


def test_there_are_many_bugs_of_many_kinds():
    faults = [read_faults()[name] for name in BUGS]
    assert len(set(BUGS)) == len(BUGS) >= 12 and len({fault.kind for fault in faults}) >= 8
    assert set(BUGS) == set(gallery.measured())


def test_every_bug_has_its_thread_its_story_and_its_lines():
    text = gallery.page()
    for bug in gallery.read_bugs():
        assert gallery.thread(read_faults()[bug["fault"]]).count("https://github.com/") == 1
        assert bug["title"] in text and len(bug["told"]) > 100 and len(bug["code"]) > 50


def test_a_bug_without_a_thread_is_refused():
    with pytest.raises(ValueError, match=r"wanted a thread in threads\.toml"):
        gallery.thread(read_faults()["softmax_without_maximum"])


@each_bug
def test_the_usual_test_says_what_the_page_says(name):
    assert measure_gallery.usual_test(read_faults()[name]) == gallery.measured()[name]["usual"]


def test_the_suite_finds_them_all_and_many_pass_the_usual_test():
    said = gallery.measured().values()
    assert all(each["suite"] for each in said)
    assert sum(each["usual"] == "passes" for each in said) >= 6


def test_the_usual_test_fails_what_is_plainly_wrong():
    faults = read_faults()
    assert measure_gallery.usual_test(faults["scaled_dot_product_attention_unscaled"]) == "fails"


@pytest.mark.parametrize("name", ["get_slopes_plain_series"])
def test_the_suite_says_what_the_page_says(name):
    assert measure_gallery.suite_says(read_faults()[name]) == gallery.measured()[name]["suite"]


def test_every_bug_has_the_page_of_its_report(tmp_path):
    gallery.write_reports(tmp_path)
    assert {path.stem for path in (tmp_path / gallery.FOLDER).glob("*.html")} == set(BUGS)
    for name in BUGS:
        page = (tmp_path / gallery.FOLDER / f"{name}.html").read_text()
        assert "1 of 1 cells failed" in page and f"pytest -m faults -k {name}" in page
        assert f"../{gallery.FOLDER}/{name}.html" in gallery.page()


@pytest.mark.parametrize("name", ["get_slopes_plain_series"])
def test_the_report_of_a_bug_is_what_a_run_says(name):
    found = measure_gallery.report_of(read_faults()[name])
    assert (
        json.loads(json_text(found)) == gallery.status.read("gallery_reports")["operations"][name]
    )


@pytest.mark.thorough
@each_bug
def test_the_suite_says_of_every_bug_what_the_page_says(name):
    assert measure_gallery.suite_says(read_faults()[name]) == gallery.measured()[name]["suite"]
