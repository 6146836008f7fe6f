"""Files of single results of insight."""

from __future__ import annotations

import pytest
from support.insight_results import layers, surface, trajectory

from sentinel.web.report_page import render_insight_page, write_insight_page


def test_results_of_one_name_and_step_are_all_in_the_file(tmp_path):
    path = tmp_path / "a.html"
    write_insight_page([surface(3, size=5), surface(3, size=5), trajectory()], path)

    text = path.read_text()
    assert "default-src 'none'" in text
    assert "<title>Loss surface, Trajectory of the weights: sentinel</title>" in text
    for key in ("loss_surface-3.0", "loss_surface-3.1", "trajectory-grpo-7b.2"):
        assert f'"api/insight/{key}"' in text


@pytest.mark.parametrize("result", [None, 5, {}, {"kind": "<b>"}, layers(2)])
def test_what_is_no_result_is_refused_and_the_former_file_stays(tmp_path, result):
    path = tmp_path / "a.html"
    path.write_text("former")
    with pytest.raises((TypeError, ValueError), match="result"):
        write_insight_page(result, path)

    assert [each.read_text() for each in tmp_path.iterdir()] == ["former"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_insight_page(surface(3, size=5), tmp_path / "missing" / "a.html")


def test_texts_cannot_leave_the_data():
    text = render_insight_page(surface(1, size=5, model="</script><b>"), title="</title><b>")

    assert "</script><b>" not in text
    assert "</title><b>" not in text
