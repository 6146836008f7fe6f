"""Outcomes as Markdown tables, written into the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

from detection_exact import EXACT
from detection_run import FAULTS
from detection_score import NONE, Detections, FalseAlarms, format_delays
from detection_suite import Outcome
from peers import PEERS
from support.synthetic_runs import SEVERITIES

PAGE = Path(__file__).parents[1] / "docs" / "detection.md"
EXCLUDED_FROM_MEAN = ("oscillation", "loss_plateau", *EXACT)
"""Faults outside of the mean: at info by design, a statement rather than an alarm, exact."""

FAULTS_IN_MEAN = tuple(fault for fault in FAULTS if fault not in EXCLUDED_FROM_MEAN)


def title(evaluator: str) -> str:
    return "**sentinel**" if evaluator == "ours" else PEERS[evaluator].title


def rows(head: list[str], body: list[list[str]]) -> str:
    """A table; the first column is text."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def false_alarms(outcomes: dict[str, Outcome]) -> str:
    head = ["", "RL: per 10k points", "runs hit", "supervised: per 10k points", "runs hit"]
    head.append("critical, both")
    return rows(head, [[title(j), *_false_alarms(o)] for j, o in outcomes.items()])


def _false_alarms(outcome: Outcome) -> list[str]:
    rl, sft = outcome.false_alarms["rl"], outcome.false_alarms["sft"]
    cells = [
        cell for false_alarms in (rl, sft) for cell in (_rate(false_alarms), _share(false_alarms))
    ]
    return [*cells, str(rl.critical + sft.critical)]


def _rate(false_alarms: FalseAlarms) -> str:
    return f"{false_alarms.rate:.2f} ({false_alarms.warned} in {false_alarms.points:,})"


def _share(false_alarms: FalseAlarms) -> str:
    return f"{100 * false_alarms.runs_with_alarms / max(1, false_alarms.runs):.0f} %"


def recall(outcomes: dict[str, Outcome]) -> str:
    """Share of detected faults, averaged over kinds; delay over all of them."""
    head = ["mean over the kinds of fault", *SEVERITIES, "median delay of the severe, in points"]
    return rows(head, [[title(j), *_recall(o)] for j, o in outcomes.items()])


def _recall(outcome: Outcome) -> list[str]:
    shares = [fmean(outcome.detections[f][s].recall for f in FAULTS_IN_MEAN) for s in SEVERITIES]
    delays = [d for f in FAULTS_IN_MEAN for d in outcome.detections[f]["severe"].warned]
    return [
        *(f"{100 * share:.0f} %" for share in shares),
        f"{median(delays):.0f}" if delays else NONE,
    ]


def faults(outcome: Outcome) -> str:
    """Each fault as sentinel detects it: share, then median and 90th percentile of the delay."""
    body = [
        [
            fault,
            *(_cell(grades.get(severity)) for severity in SEVERITIES),
            *_cases_and_cause(grades),
        ]
        for fault, grades in outcome.detections.items()
    ]
    return rows(["", *SEVERITIES, "incidents, cases", "cause named"], body)


def _cell(detections: Detections | None) -> str:
    if detections is None:
        return ""
    warned = f"{100 * detections.recall:.0f} %"
    opened = 100 * len(detections.opened) / detections.runs
    opened_text = f" ({opened:.0f} % opened)" if opened > 100 * detections.recall else ""
    delays = f", {format_delays(detections.warned)}" if detections.warned else ""
    return f"{warned}{opened_text}{delays}"


def _cases_and_cause(grades: dict[str, Detections]) -> list[str]:
    """Incidents and cases per fault, and the cause that is named most often."""
    notifications = [count for detections in grades.values() for count in detections.notifications]
    cases = [count for detections in grades.values() for count in detections.cases]
    if not notifications:
        return [NONE, NONE]
    named = Counter[str]()
    for detections in grades.values():
        named.update(detections.causes)
    cause, count = named.most_common(1)[0]
    share = f"{cause or 'none'} {100 * count / len(notifications):.0f} %"
    return [f"{fmean(notifications):.1f}, {fmean(cases):.1f}", share]


def by_fault(outcomes: dict[str, Outcome]) -> str:
    """The moderate case of each fault (severe, if it has no severities), by evaluator."""
    names = [*FAULTS, *EXACT]
    body = [[fault, *(_short(o.detections[fault]) for o in outcomes.values())] for fault in names]
    return rows(["", *(title(evaluator) for evaluator in outcomes)], body)


def _short(grades: dict[str, Detections]) -> str:
    detections = grades.get("moderate") or grades["severe"]
    if not detections.warned:
        return NONE
    return f"{100 * detections.recall:.0f} %, {median(detections.warned):.0f}"


def early(outcomes: dict[str, Outcome]) -> str:
    """Severe faults at point 30 of a run of 190 to 300."""
    body = [
        [title(j), *(_early(detections) for detections in o.early.values())]
        for j, o in outcomes.items()
    ]
    return rows(["at point 30", *next(iter(outcomes.values())).early], body)


def _early(detections: Detections) -> str:
    if not detections.warned:
        return NONE
    return f"{100 * detections.recall:.0f} %, {median(detections.warned):.0f}"


def collapse(outcomes: dict[str, Outcome]) -> str:
    """Policy collapse: lead over the reward's cliff, and whether it is one notification."""
    head = [
        "policy collapse",
        "warned",
        "lead, of the lag",
        "one notification",
        "right root",
        "right name",
    ]
    body = []
    for evaluator, outcome in outcomes.items():
        for severity, detections in outcome.detections["policy_collapse"].items():
            body.append([f"{title(evaluator)}, {severity}", *_collapse(detections)])
    return rows(head, body)


def _collapse(detections: Detections) -> list[str]:
    warned = f"{100 * detections.recall:.0f} %"
    if not detections.warned:
        return [warned, NONE, NONE, NONE, NONE]
    shares = [[cases == 1 for cases in detections.cases], detections.roots, detections.names]
    return [
        warned,
        f"{100 * median(detections.leads):+.0f} %",
        *(f"{100 * fmean(x):.0f} %" for x in shares),
    ]


SYNTHETIC: dict[str, Callable[[dict[str, Outcome]], str]] = {
    "false-alarms": false_alarms,
    "recall": recall,
    "faults": lambda outcomes: faults(outcomes["ours"]),
    "by-fault": by_fault,
    "early": early,
    "collapse": lambda outcomes: collapse({"ours": outcomes["ours"]}),
}
"""Tables by the name that marks their place in the page."""


def write_table(name: str, text: str) -> None:
    """Write a table into its place in the documentation. Raises ValueError if there is none."""
    page, start, end = PAGE.read_text(), f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    if start not in page or end not in page:
        raise ValueError(f"{PAGE.name} has no place for {name}: add '{start.strip()}' and '{end}'")
    before, rest = page.split(start, 1)
    PAGE.write_text(f"{before}{start}\n{text}\n\n{end}{rest.split(end, 1)[1]}")
