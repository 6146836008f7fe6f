"""Remedies that advise to resume from a checkpoint, where none exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from sentinel import causes, detectors
from sentinel.model.checkpoint_clause import fit_checkpoint_clause, fit_last_checkpoint

RESUMED = {"resume_lost_state"}
"""Of runs that were resumed: the checkpoint of that exists."""
MODULES = {
    path.stem: path
    for package in (detectors, causes)
    for path in sorted(Path(package.__path__[0]).glob("*.py"))
}
RESUME = re.compile(r"\bresume\b[^.;]*\bfrom\b[^.;]*\b(checkpoint|onset)", re.IGNORECASE)


def texts(path):
    """Every text of a module that is no docstring, with `…` for the values in it."""
    tree = ast.parse(path.read_text())
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {part for node in formatted for part in node.values}
    for node in formatted:
        yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and node not in docstrings | parts:
            yield node.value


def without_checkpoint(text):
    return fit_checkpoint_clause(fit_last_checkpoint(text, has_checkpoint=False), None)


@pytest.mark.parametrize("name", sorted(MODULES.keys() - RESUMED))
def test_no_remedy_advises_to_resume_from_a_checkpoint_that_does_not_exist(name):
    assert [
        text for text in map(without_checkpoint, texts(MODULES[name])) if RESUME.search(text)
    ] == []


def test_a_remedy_of_each_kind_advises_to_resume_where_there_is_a_checkpoint():
    """The test above would not fail if the texts were not found."""
    found = {name for name, path in MODULES.items() if any(map(RESUME.search, texts(path)))}

    assert len(found) > 25
    assert {"run_died", "run_failed", "node_lost", "kl_blowup", "bad_batch", "node_down"} <= found


@pytest.mark.parametrize(
    ("remedy", "start"),
    [
        ("Read the log. Resume from the last checkpoint.", "Read the log. Start the run again."),
        (
            "Drain it, and resume from the last checkpoint with another node.",
            "Drain it, and start the run again with another node.",
        ),
    ],
)
def test_the_last_checkpoint_is_named_if_there_is_one(remedy, start):
    assert fit_last_checkpoint(remedy, has_checkpoint=True) == remedy
    assert fit_last_checkpoint(remedy, has_checkpoint=False) == start


def test_a_checkpoint_before_the_onset_is_another_matter_than_the_last_one():
    remedy = "Resume from the last checkpoint before the onset."

    assert fit_last_checkpoint(remedy, has_checkpoint=False) == remedy
    assert fit_checkpoint_clause(remedy, None) == "Start again from before the onset."
    assert fit_checkpoint_clause("Resume from the last checkpoint.", None).startswith("Resume")
