"""Tests of the report as Markdown: texts of a run stay texts."""

import pytest

from sentinel.report.markdown import markdown_report

CASE = {
    "name": "r/kl_blowup#1",
    "severity": "critical",
    "subject": "KL blowup",
    "onset_step": 5,
    "opened_step": 6,
    "resolved_step": None,
    "last_good_step": 4,
    "remedy": "Lower `learning_rate`.",
    "message": {"subject": "KL blowup", "facts": ["KL is 9 nats"]},
}


def report(name="r", metadata=None, cases=(), summary="Fine."):
    answers = {
        "api/run": {"run": name, "state": "finished", "step": 9, "metadata": metadata or {}},
        "api/cases": list(cases),
        "api/incidents": [],
        "api/deliveries": [],
        "api/set-up": {"checks": [], "facts": [{"name": "Ranks", "value": "2"}]},
    }
    run = {"name": name, "verdict": {"title": "Healthy"}, "summary": summary, "results": []}
    return {"generated": 0.0, "runs": [{**run, "answers": answers}], "comparison": None}


def test_a_case_has_its_steps_its_evidence_and_what_to_do():
    text = markdown_report(report(cases=[CASE]))

    assert "### Critical: KL blowup\n" in text
    assert "| 5 | 6 | - | 4 |" in text
    assert "- KL is 9 nats\n" in text
    assert "What to do: Lower `learning_rate`." in text


def test_the_set_up_is_there_if_the_training_was_checked():
    checked = report()
    check = {"check": "mode", "result": "found", "evidence": "`eval()`", "remedy": "a|b"}
    checked["runs"][0]["answers"]["api/set-up"]["checks"] = [check]

    assert "## Set-up" not in markdown_report(report())
    assert "| mode | found | `eval()` | a\\|b |\n\nRanks: 2\n" in markdown_report(checked)


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("[x](javascript:alert(1))", r"\[x\](javascript:alert(1))"),
        ("![x](https://evil.example/pixel)", r"!\[x\](https://evil.example/pixel)"),
        ("@everyone #1", "&#64;everyone &#35;1"),
        ("a | b\n# c", r"a \| b &#35; c"),
        ("<img src=x>", "&lt;img src=x&gt;"),
        ("one ` backtick", r"one \` backtick"),
        ("`<b>` and `a`b`", "\\`"),
    ],
)
def test_texts_become_no_links_pictures_mentions_or_cells(hostile, shown):
    assert shown in markdown_report(report(summary=hostile))


def test_names_and_values_are_code_that_cannot_end():
    text = markdown_report(report("a`b|c\u202e", {"x\ny": "`|`"}))

    assert "# Healthy: `a'b\\|c`" in text
    assert "| `x y` | `'\\|'` |" in text


def test_the_job_of_slurm_is_named_with_its_nodes():
    metadata = {"slurm/job_id": "7", "slurm/partition": "gpu", "slurm/node_list": "n[1-2]"}

    assert "| Slurm job | 7, gpu, n\\[1-2\\] |" in markdown_report(report(metadata=metadata))
    assert "Slurm" not in markdown_report(report())
