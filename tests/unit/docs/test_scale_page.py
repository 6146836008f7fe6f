"""docs/scale.md shows the figures of the result files and valid configurations."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import find

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import scale_page

PAGE = scale_page.PAGE.read_text()
BLOCKS = re.findall(r"^```yaml (prometheus|rules)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", scale_page.tables())
def test_tables_of_the_page_match_the_benchmark_results(name):
    _, within, _ = scale_page.place(PAGE, name)

    assert within == scale_page.tables()[name]


def test_a_page_without_a_table_marker_is_an_error():
    with pytest.raises(ValueError, match="add '<!-- senders -->' and its end"):
        scale_page.place("nothing here", "senders")


def test_no_record_was_lost_where_the_head_kept_up():
    kept_up = [row for row in scale_page.result("fleet")["rows"] if row["delay_s_most"] < 3.0]

    assert kept_up
    assert not any(row["lost"] or row["refused"] or row["dropped"] for row in kept_up)


def test_bytes_per_rank_do_not_grow_with_the_number_of_ranks():
    """Of the collectives but `gather`, what each rank sends does."""
    worlds = scale_page.result("aggregation")["worlds"]
    few, many = worlds["8"], worlds["64"]

    assert many["gloo"]["all_gather"]["bytes"] > 4 * few["gloo"]["all_gather"]["bytes"]
    assert not any(found["lost"] for ranks, found in worlds.items() if int(ranks) <= 64)


@pytest.mark.stack
@pytest.mark.parametrize(("kind", "text"), BLOCKS)
def test_prometheus_takes_the_configurations_of_the_page(tmp_path, kind, text):
    (tmp_path / "rules.yml").write_text("groups: []\n")
    (tmp_path / "fleet.yml").write_text("groups: []\n")
    (tmp_path / "sentinel_token").write_text("secret")
    (tmp_path / "checked.yml").write_text(text)
    check = "config" if kind == "prometheus" else "rules"

    words = [find("promtool"), "check", check, "checked.yml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
