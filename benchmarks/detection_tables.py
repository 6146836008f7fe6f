"""Outcomes as tables in Markdown, and into the page of the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

from detection_exact import EXACT
from detection_run import FAULTS
from detection_score import NONE, Calm, Found, late
from detection_suite import Outcome
from peers import PEERS
from support.synthetic_runs import SEVERITIES

PAGE = Path(__file__).parents[1] / "docs" / "detection.md"
APART = ("oscillation", "loss_plateau", *EXACT)
"""Faults outside of the mean: told as info by design, a statement rather than an alarm, exact."""

MEAN_OF = tuple(fault for fault in FAULTS if fault not in APART)


def title(judge: str) -> str:
    return "**sentinel**" if judge == "ours" else PEERS[judge].title


def rows(head: list[str], body: list[list[str]]) -> str:
    """A table; the first column is text."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def false_alarms(outcomes: dict[str, Outcome]) -> str:
    head = ["", "RL: per 10k points", "runs hit", "supervised: per 10k points", "runs hit"]
    head.append("critical, both")
    return rows(head, [[title(j), *_calm(o)] for j, o in outcomes.items()])


def _calm(outcome: Outcome) -> list[str]:
    rl, sft = outcome.calm["rl"], outcome.calm["sft"]
    cells = [cell for calm in (rl, sft) for cell in (_rate(calm), _share(calm))]
    return [*cells, str(rl.critical + sft.critical)]


def _rate(calm: Calm) -> str:
    return f"{calm.rate:.2f} ({calm.told} in {calm.points:,})"


def _share(calm: Calm) -> str:
    return f"{100 * calm.loud_runs / max(1, calm.runs):.0f} %"


def recall(outcomes: dict[str, Outcome]) -> str:
    """Share of faults that are answered, over the kinds; delay over all of them."""
    head = ["mean over the kinds of fault", *SEVERITIES, "median delay of the severe, in points"]
    return rows(head, [[title(j), *_recall(o)] for j, o in outcomes.items()])


def _recall(outcome: Outcome) -> list[str]:
    shares = [fmean(outcome.found[f][s].recall for f in MEAN_OF) for s in SEVERITIES]
    delays = [d for f in MEAN_OF for d in outcome.found[f]["severe"].told]
    return [
        *(f"{100 * share:.0f} %" for share in shares),
        f"{median(delays):.0f}" if delays else NONE,
    ]


def faults(outcome: Outcome) -> str:
    """Each fault as ours answered it: share, then median and 90th percentile of the delay."""
    body = [
        [fault, *(_cell(grades.get(severity)) for severity in SEVERITIES), *_told(grades)]
        for fault, grades in outcome.found.items()
    ]
    return rows(["", *SEVERITIES, "incidents, cases", "cause named"], body)


def _cell(found: Found | None) -> str:
    if found is None:
        return ""
    told = f"{100 * found.recall:.0f} %"
    noted = 100 * len(found.noted) / found.runs
    more = f" ({noted:.0f} % noted)" if noted > 100 * found.recall else ""
    return f"{told}{more}, {late(found.told)}" if found.told else f"{told}{more}"


def _told(grades: dict[str, Found]) -> list[str]:
    """Incidents and cases that a fault is told as, and the cause that is named most often."""
    pages = [count for found in grades.values() for count in found.pages]
    cases = [count for found in grades.values() for count in found.cases]
    if not pages:
        return [NONE, NONE]
    named = Counter[str]()
    for found in grades.values():
        named.update(found.causes)
    cause, count = named.most_common(1)[0]
    share = f"{cause or 'none'} {100 * count / len(pages):.0f} %"
    return [f"{fmean(pages):.1f}, {fmean(cases):.1f}", share]


def by_fault(outcomes: dict[str, Outcome]) -> str:
    """The moderate case of each fault (the severe, where it has no grades), by judge."""
    names = [*FAULTS, *EXACT]
    body = [[fault, *(_short(o.found[fault]) for o in outcomes.values())] for fault in names]
    return rows(["", *(title(judge) for judge in outcomes)], body)


def _short(grades: dict[str, Found]) -> str:
    found = grades.get("moderate") or grades["severe"]
    if not found.told:
        return NONE
    return f"{100 * found.recall:.0f} %, {median(found.told):.0f}"


def early(outcomes: dict[str, Outcome]) -> str:
    """Severe faults at point 30 of a run of 190 to 300."""
    body = [[title(j), *(_early(found) for found in o.early.values())] for j, o in outcomes.items()]
    return rows(["at point 30", *next(iter(outcomes.values())).early], body)


def _early(found: Found) -> str:
    return f"{100 * found.recall:.0f} %, {median(found.told):.0f}" if found.told else NONE


def collapse(outcomes: dict[str, Outcome]) -> str:
    """Policy collapse: how far ahead of the reward's cliff, and whether it is one page."""
    head = ["policy collapse", "told", "lead, of the lag", "one page", "right root", "right name"]
    body = []
    for judge, outcome in outcomes.items():
        for severity, found in outcome.found["policy_collapse"].items():
            body.append([f"{title(judge)}, {severity}", *_collapse(found)])
    return rows(head, body)


def _collapse(found: Found) -> list[str]:
    told = f"{100 * found.recall:.0f} %"
    if not found.told:
        return [told, NONE, NONE, NONE, NONE]
    shares = [[cases == 1 for cases in found.cases], found.roots, found.names]
    return [
        told,
        f"{100 * median(found.leads):+.0f} %",
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


def put(name: str, text: str) -> None:
    """Write a table into its place in the documentation; ValueError where there is none."""
    page, start, end = PAGE.read_text(), f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    if start not in page or end not in page:
        raise ValueError(f"{PAGE.name} has no place for {name}: add '{start.strip()}' and '{end}'")
    before, rest = page.split(start, 1)
    PAGE.write_text(f"{before}{start}\n{text}\n\n{end}{rest.split(end, 1)[1]}")
