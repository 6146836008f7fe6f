"""`sentinel status`: the runs of this machine, and how each is doing."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from typing import Any

import typer

UNREACHABLE = "unreachable"


def status(
    json: bool = typer.Option(False, "--json", help="One JSON object a run and line."),
) -> None:
    """Show every run that is being served: what it is, its step, and what is wrong with it."""
    from sentinel.agent.discovery import query_agent, registration_files
    from sentinel.transport.paths import home_dir

    token = _load_token()
    runs = [_to_dict(query_agent(path, token)) for path in registration_files()]
    for run in runs:
        print(jsonlib.dumps(run) if json else "\n".join(_format_run(run)))
    if not runs and not json:
        print(f"No run is being served under {home_dir()}.")


def _load_token() -> str:
    """What an agent may ask of its readers; nothing where the settings cannot be read."""
    from sentinel.config.settings import ConfigError, load_settings

    try:
        return load_settings().secret_token()
    except ConfigError:
        return ""


def _to_dict(agent: Any) -> dict[str, Any]:
    state = agent.state
    return {
        "run": agent.run,
        "url": agent.url,
        "state": state.get("state", UNREACHABLE),
        "step": state.get("step"),
        "cases": state.get("cases", []),
        "incidents": state.get("incidents", []),
        "silences": state.get("silences", []),
        "tier": state.get("tier", "page"),
        "metadata": state.get("metadata", {}),
        "patches": state.get("patches", {}),
        "cluster": state.get("cluster", {}),
        "error": agent.trouble,
        "remedy": agent.remedy,
    }


def _format_run(run: dict[str, Any]) -> Iterator[str]:
    from sentinel.metrics.label import sanitize_label
    from sentinel.metrics.node_status import node_lines

    name = sanitize_label(run["run"])
    if run["state"] == UNREACHABLE:
        yield f"{name}: {run['trouble']}; {run['remedy']}"
        return
    yield f"{name}: {_format_state(run)} ({run['url']})"
    if about := format_run_metadata(run["metadata"]):
        yield f"  {sanitize_label(about)}"
    yield from (f"  {strip_unprintable(line)}" for line in node_lines(run))
    named = {case["name"]: case for case in run["cases"] if case["diagnosis"]}
    for name, case in named.items():
        yield f"  {strip_unprintable(format_cause(case))}"
        yield f"    what to do: {strip_unprintable(case['remedy'])}"
        own = (incident for incident in run["incidents"] if incident["case"] == name)
        yield from (f"    {_format_incident(incident)}" for incident in own)
    for incident in run["incidents"]:
        if incident.get("case") not in named:
            yield f"  {_format_incident(incident)}"
    for name, said, ranks in failed_patches(run["patches"]):
        numbers = ", ".join(map(str, ranks))
        yield f"  tap {sanitize_label(name)} is {sanitize_label(said)} (rank {numbers})"


def _format_state(run: dict[str, Any]) -> str:
    """Its state and step, where it is judged if not here, and its tier."""
    from sentinel.metrics.label import sanitize_label
    from sentinel.metrics.node_status import describe_head

    elsewhere = strip_unprintable(describe_head(run))
    # A node that only hands its records over counts no steps.
    first = "" if elsewhere else " before its first step"
    where = first if run["step"] is None else f" at step {run['step']}"
    tier = "" if run["tier"] == "page" else f"tier {sanitize_label(run['tier'])}"
    return ", ".join(filter(None, (f"{run['state']}{where}", elsewhere, tier)))


def _format_incident(incident: dict[str, Any]) -> str:
    return f"{incident['severity']}: {strip_unprintable(incident['summary'] + format_incident_notes(incident))}"


def format_cause(case: dict[str, Any]) -> str:
    """What is behind a case, how sure that is, and where to go back to.

    >>> sure = {"title": "policy collapse", "belief": "likely, 83 %"}
    >>> cause({"severity": "critical", "diagnosis": sure, "onset_step": 286, "last_good_step": 280})
    'critical: policy collapse (likely, 83 %), since step 286; last checkpoint before: step 280'
    """
    named, good = case["diagnosis"], case["last_good_step"]
    words = f"{case['severity']}: {named['title']} ({named['belief']}), since step"
    back = "" if good is None else f"; last checkpoint before: step {good}"
    return f"{words} {case['onset_step']}{back}"


def strip_unprintable(text: str) -> str:
    """Without what could move the cursor or turn the line round: texts come from training code."""
    return "".join(sign for sign in text if sign.isprintable())


def format_run_metadata(metadata: dict[str, Any]) -> str:
    """A run in a few words: framework and version, algorithm, model, ranks.

    >>> what_it_is({"framework": "trl", "framework_version": "1.16.0", "world_size": 8.0})
    'trl 1.16.0, 8 ranks'
    """
    framework = " ".join(
        str(metadata[k]) for k in ("framework", "framework_version") if metadata.get(k)
    )
    words = [framework, *(str(metadata.get(key, "")) for key in ("algorithm", "model"))]
    ranks = metadata.get("world_size")
    if isinstance(ranks, float):
        words.append(f"{ranks:.0f} rank{'s' if ranks != 1 else ''}")
    return ", ".join(filter(None, words))


def format_incident_notes(incident: dict[str, Any]) -> str:
    """What people made of an incident: who has it in hand, until when it is silenced.

    >>> known({"acknowledged": {"author": "ana", "comment": "mine"}, "silenced": None, "flaps": 2})
    ' (came back 2 times; acknowledged by ana: mine)'
    >>> known({"onset": {"step": 41, "earliest": 38, "latest": 44, "last_good_step": 30}})
    ' (began at step 41, between 38 and 44; last checkpoint before: step 30)'
    """
    from sentinel.store.silences import format_utc_time, with_author

    words = []
    good, onset = incident.get("last_good_step"), incident.get("onset")
    if onset:
        span = f", between {onset['earliest']} and {onset['latest']}"
        words.append(f"began at step {onset['step']}{span}")
        good = onset["last_good_step"]
    if good is not None:
        words.append(f"last checkpoint before: step {good}")
    if flaps := incident.get("flaps"):
        words.append(f"came back {flaps} times" if flaps > 1 else "came back once")
    for word in ("acknowledged", "silenced"):
        if told := incident.get(word):
            until = f" until {format_utc_time(told['ends_at'])}" if "ends_at" in told else ""
            words.append(with_author(f"{word}{until}", told["author"], told["comment"]))
    return f" ({'; '.join(words)})" if words else ""


def failed_patches(
    patches: dict[str, dict[str, list[int]]],
) -> Iterator[tuple[str, str, list[int]]]:
    """Each tap that is not plainly on: its integration, what it says, and the ranks it says it in.

    >>> list(troubled({"trl": {"on": [0], "off: KeyError in on_log": [1, 2]}}))
    [('trl', 'off: KeyError in on_log', [1, 2])]
    """
    for name, said in sorted(patches.items()):
        yield from ((name, state, ranks) for state, ranks in sorted(said.items()) if state != "on")
