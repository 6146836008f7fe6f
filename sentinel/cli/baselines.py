"""`sentinel baselines`: the stored trajectories of healthy runs, from which alike runs start."""

from __future__ import annotations

import json as jsonlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel.cli._options import JsonOption, error_exit

if TYPE_CHECKING:
    from sentinel.store.baselines import BaselineStore, StoredBaseline

app = typer.Typer(no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(help="Id, as shown by `sentinel baselines list`.")]


@app.callback()
def baselines() -> None:
    """List, export or delete the stored trajectories of healthy runs."""


@app.command("list")
def list_baselines(json: JsonOption = False) -> None:
    """List the stored baselines, one of each configuration.

    Exit status: 0, also without any.
    """
    from sentinel.cli._terminal import escape_unprintable

    found = _store().load_all()
    for baseline in found:
        summary = _summary(baseline)
        print(jsonlib.dumps(summary) if json else escape_unprintable(_format(summary)))
    if not found and not json:
        print("No baseline is stored. A healthy run stores one when it finishes.")


@app.command()
def forget(
    name: Annotated[str | None, typer.Argument(metavar="[ID]", help="Id of a baseline.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all baselines.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete a baseline: later runs of that configuration start without.

    Exit status: 0 on success, 2 if there is none with that id.
    """
    if (name is None) != everything:
        raise error_exit("baselines forget", "give an id, or --all.")
    store = _store()
    names = store.names() if name is None else [name]
    for each in names:
        if not store.forget(each):
            raise error_exit("baselines forget", _unknown(each))
    if json:
        print(jsonlib.dumps({"deleted": names}))
    else:
        print(f"{len(names)} baseline{'' if len(names) == 1 else 's'} deleted.")


@app.command()
def export(name: IdArgument, json: JsonOption = False) -> None:
    """Print a baseline as JSON: configuration, runs, and the trajectory of each signal.

    With --json, in one line.

    Exit status: 0 on success, 2 if there is none with that id.
    """
    from sentinel.store.baselines import baseline_to_dict

    baseline = _store().load(name)
    if baseline is None:
        raise error_exit("baselines export", _unknown(name))
    print(jsonlib.dumps(baseline_to_dict(baseline), indent=None if json else 2))


def _store() -> BaselineStore:
    from sentinel.store.baselines import BaselineStore
    from sentinel.transport.paths import home_dir

    return BaselineStore(home_dir() / "baselines")


def _unknown(name: str) -> str:
    return f"there is no baseline {name!r}; `sentinel baselines list` shows the ids."


def _summary(baseline: StoredBaseline) -> dict[str, Any]:
    signals = sorted({signal for run in baseline.runs for signal in run.priors})
    newest = max((run.time for run in baseline.runs), default=0.0)
    return {
        "id": baseline.id,
        "runs": [run.run for run in baseline.runs],
        "signals": signals,
        "newest": newest,
        "configuration": dict(baseline.configuration),
    }


def _format(summary: dict[str, Any]) -> str:
    configuration, count = summary["configuration"], len(summary["runs"])
    project = next(
        (configuration[key] for key in ("project", "script", "model") if key in configuration), ""
    )
    newest = datetime.fromtimestamp(summary["newest"], UTC).strftime("%Y-%m-%d %H:%M")
    return (
        f"{summary['id']}  {project}  {count} run{'' if count == 1 else 's'}, "
        f"newest {newest} UTC  {', '.join(summary['signals'])}"
    )
