"""`sentinel chaos`: inject a fault into a run of its own, and see which sinks are notified."""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sentinel.cli._options import error_exit, exit_if_off, exit_on, settings_environ

if TYPE_CHECKING:
    from sentinel.config.settings import Settings
    from sentinel.demo.drill import Drill, DrillEvent
    from sentinel.demo.drill_faults import DrillFault


def chaos(
    fault: str | None = typer.Option(None, help="Fault to inject; --list shows them."),
    list_faults: bool = typer.Option(False, "--list", help="List the faults and exit."),
    config: Path | None = typer.Option(None, help="Settings file (sentinel.toml)."),
    timeout: float = typer.Option(
        60.0, min=1.0, help="Seconds for a detection, and for the deliveries of a notification."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object per line."),
) -> None:
    """Test the way to the people on call: a marked run fails, and your sinks are notified.

    Exit status: 0 if every sink accepted the opening and the closing notification, 1 if one did
    not, 2 if the drill cannot be run.
    """
    if list_faults:
        _print_faults(as_json=as_json)
        return
    chosen = _check_fault(fault)
    settings = _load_settings(config)
    _check_environment(chosen)
    raise typer.Exit(_run_drill(chosen, settings, config, timeout, as_json=as_json))


def _print_faults(*, as_json: bool) -> None:
    from sentinel.demo.drill_faults import FAULTS

    for fault in FAULTS.values():
        if as_json:
            print(json.dumps({"fault": fault.name, "description": fault.description}))
        else:
            print(f"{fault.name:14}{fault.description}, found in about {fault.seconds:.0f} s")


def _check_fault(name: str | None) -> DrillFault:
    from sentinel.demo.drill_faults import FAULTS
    from sentinel.model.nearest_name import nearest_name

    if name in FAULTS:
        return FAULTS[name]
    if name is None:
        raise error_exit(
            "chaos", f"give a fault, such as --fault nan. Faults: {', '.join(FAULTS)}."
        )
    near = nearest_name(name, FAULTS)
    hint = f"Did you mean {near!r}? " if near else ""
    raise error_exit("chaos", f"no fault {name!r}. {hint}Faults: {', '.join(FAULTS)}.")


def _load_settings(config: Path | None) -> Settings:
    from sentinel.config.settings import ConfigError, load_settings

    with exit_on("chaos", ConfigError):
        settings = load_settings(environ=settings_environ(config))
    if not settings.sinks:
        raise error_exit(
            "chaos",
            "no sink is configured, so nothing would be sent. Set, for example, "
            "SENTINEL_SINKS__SLACK__URL, or url in [sinks.slack] of sentinel.toml; "
            "docs/notifications.md shows every receiver.",
        )
    return settings


def _check_environment(fault: DrillFault) -> None:
    """Refuse where the drill would be part of a real run, or cannot work."""
    from sentinel.demo.drill import job_variable

    if variable := job_variable(os.environ):
        raise error_exit(
            "chaos",
            f"{variable} is set, so this is the environment of a training job, to which the drill "
            "would belong. Run it in a shell outside of the job.",
        )
    exit_if_off("chaos", "monitored")
    if fault.nodes > 1 and find_spec("torch") is None:
        raise error_exit(
            "chaos",
            f"{fault.name} needs torch, through which agents of several nodes communicate. "
            "Install it (pip install torch), or inject another fault.",
        )


def _run_drill(
    fault: DrillFault, settings: Settings, config: Path | None, timeout: float, *, as_json: bool
) -> int:
    from sentinel.demo.drill import Drill, DrillError

    # The processes of the drill must end with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with Drill(fault, settings, config, timeout) as drill:
        _print_start(drill, as_json=as_json)
        try:
            for event in drill.events():
                _print_event(event, as_json=as_json)
        except DrillError as error:
            raise error_exit("chaos", str(error)) from None
        except KeyboardInterrupt:
            print("sentinel chaos: interrupted; its processes are ended.", file=sys.stderr)
            return 128 + signal.SIGINT
        _print_summary(drill, as_json=as_json)
        return 0 if drill.passed else 1


def _print_start(drill: Drill, *, as_json: bool) -> None:
    if as_json:
        _print_json("start", run=drill.run, fault=drill.fault.name, sinks=drill.sinks)
        return
    print(f"Drill {drill.run}: {drill.fault.description}. Every message is marked as a drill.")
    print(f"Sinks: {', '.join(drill.sinks)}.", flush=True)


def _print_event(event: DrillEvent, *, as_json: bool) -> None:
    from sentinel.cli._terminal import escape_unprintable

    if as_json:
        seconds = round(event.seconds, 2)
        _print_json(event.kind, seconds=seconds, text=event.text, **event.fields)
        return
    labels = {"injected": "fault: ", "detected": "found: "}
    text = f"{labels.get(event.kind, '')}{event.text}"
    print(f"{event.seconds:6.1f} s  {escape_unprintable(text)}", flush=True)


def _print_summary(drill: Drill, *, as_json: bool) -> None:
    if as_json:
        states = {
            sink: {
                "opened": drill.openings[sink].state if sink in drill.openings else "",
                "resolved": drill.closings[sink].state if sink in drill.closings else "",
            }
            for sink in drill.sinks
        }
        _print_json("summary", run=drill.run, passed=drill.passed, sinks=states)
    elif drill.passed:
        print("Passed: every sink accepted the opening and the closing.")
    else:
        print("Failed: not every sink accepted the opening and the closing.")


def _print_json(kind: str, **fields: Any) -> None:
    print(json.dumps({"type": kind, **fields}), flush=True)
