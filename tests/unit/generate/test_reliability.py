"""The reliability page promises only what is tested."""

from pathlib import Path

import pytest

from tools.generate.reliability import REGISTRY_PATH, reliability_page

ROOT = Path(__file__).parents[3]
FAULT = """
[[fault]]
id = "P1"
title = "A kill"
required = "Nothing is lost | ever."
tier = "smoke"
tests = {tests}
gap = "{gap}"
"""
GUARANTEE = """
[[guarantee]]
title = "Kept."
text = "What was logged is kept."
faults = ["P1"]
"""


def write(root, tests, gap):
    (root / REGISTRY_PATH).parent.mkdir(parents=True)
    (root / REGISTRY_PATH).write_text(GUARANTEE + FAULT.format(tests=tests, gap=gap))
    return root


def test_a_guarantee_links_to_its_faults_and_these_to_their_tests(tmp_path):
    page = reliability_page(write(tmp_path, ["tests/a/test_kill.py::test_x"], ""))

    assert "1. **Kept.** What was logged is kept. Faults: [P1](#p1)." in page
    assert "| [Process of the trainer](#process-of-the-trainer) | 1 | 1 | 0 | 0 |" in page
    assert (
        '| <a id="p1"></a>P1 | A kill | Nothing is lost \\| ever. '
        "| [test_kill](../tests/a/test_kill.py) | smoke | automated |"
    ) in page


@pytest.mark.parametrize(("tests", "gap"), [([], "no test"), (["tests/test_a.py::test_x"], "half")])
def test_a_guarantee_without_an_automated_fault_is_refused(tmp_path, tests, gap):
    with pytest.raises(ValueError, match=r"'Kept.' is not tested: (P1|gaps)"):
        reliability_page(write(tmp_path, tests, gap))


def test_every_fault_has_a_row():
    page = reliability_page(ROOT)

    assert page.count('<a id="') == 180
