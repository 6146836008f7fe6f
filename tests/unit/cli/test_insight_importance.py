"""`sentinel insight importance`: the table, JSON, the HTML file, and errors."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sentinel.cli.main import app


@pytest.fixture
def table(tmp_path):
    rows = [
        {
            "name": f"r{place}",
            "lr": place,
            "packing": place % 3 == 0,
            "model": "tiny",
            "loss": place,
        }
        for place in range(8)
    ]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(rows))
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["insight", "importance", *map(str, arguments)])


def test_a_table_with_what_limits_it(table):
    result = run(table)

    assert result.exit_code == 0, result.output
    assert "What explains loss" in result.stdout
    assert "lr" in result.stdout
    assert "1.00 (1.00 to 1.00)" in result.stdout
    assert "8 runs with different settings are too few" in " ".join(result.stdout.split())
    assert "Equal in all runs: model." in result.stdout


def test_json_is_one_object(table):
    (line,) = run(table, "--json", "--exclude", "pack*").stdout.splitlines()
    result = json.loads(line)

    assert (result["kind"], result["outcome"], result["runs"]) == ("importance", "loss", 8)
    assert [each["name"] for each in result["settings"]] == ["lr"]


def test_the_html_file_holds_the_result(table, tmp_path):
    page = tmp_path / "importance.html"
    result = run(table, "-o", page)

    assert result.exit_code == 0, result.output
    assert not result.stdout
    assert "What explains loss" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no run 'nothing' under"),
        (["{table}", "--outcome", "reward"], "no run has reward: name the outcome."),
        (["{table}", "--failed", "keep"], 'failed must be "drop" or "worst"'),
        (["{table}", "--better", "more"], 'better must be "lower" or "higher"'),
        (["{table}", "--statistic", "first"], "the statistic must be one of last, best, mean."),
        (["{table}", "--filter", "tag:x"], "--filter chooses among all runs"),
        (["--filter", "tag:x"], "no run matches 'tag:x'."),
        ([], "there are no runs under"),
    ],
)
def test_an_error_names_what_is_wrong(table, arguments, message):
    result = run(*(str(table) if each == "{table}" else each for each in arguments))

    assert result.exit_code == 2
    assert result.stderr.startswith("sentinel insight importance: ")
    assert message in result.stderr
