"""`sentinel agent`: the agent of one run on this node. Trainers start it automatically."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path

import typer

from sentinel.cli._options import error_exit, settings_environ
from sentinel.cli._run_ids import complete_run, similar_runs_text

OOM_SCORE_ABOVE_TRAINER = 500
"""By how much the agent's `oom_score_adj` is above that of the process that started it."""


def agent(
    run: str = typer.Option(
        ..., help="Run id: the name of the run's directory.", autocompletion=complete_run
    ),
    config: Path | None = typer.Option(None, help="Settings file (sentinel.toml)."),
) -> None:
    """Monitor one run until it ends: run the detectors, send notifications, serve /metrics.

    Exit status: 0 at the end of the run or if another agent serves it, 1 if a file or port is not
    usable, 2 if the settings file cannot be read or the run id is wrong.
    """
    from sentinel.agent.config_alert import ignored_text
    from sentinel.agent.main import Agent
    from sentinel.agent.output_log import OutputLog
    from sentinel.agent.registration import AlreadyServedError
    from sentinel.agent.run_service import RunService
    from sentinel.client.spawn import WARNING_PREFIX
    from sentinel.config.settings import ConfigError, load_agent_settings
    from sentinel.store.database import NewerSchemaError
    from sentinel.store.storage_monitor import StorageFailure, StorageMonitor
    from sentinel.transport.paths import RunIdError, describe_error, validate_run_id

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Our parent may have blocked signals, which is inherited.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # torch looks up the name of every client that connects, and the head's store is blocked
    # meanwhile. If the DNS server does not answer, that takes longer than clients wait. The C
    # library reads this variable at the first lookup.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:2")
    try:
        validate_run_id(run)
    except RunIdError as error:
        raise error_exit("agent", str(error)) from None
    _reject_mistyped(run)
    output = OutputLog(run)
    _yield_to_trainer()
    try:
        settings = load_agent_settings(settings_environ(config))

        def build(storage: StorageMonitor, predecessor: Agent | None) -> Agent:
            agent = Agent(run, settings, storage=storage, predecessor=predecessor)
            output.redirect(agent.run_directory.path)
            return agent

        service = RunService(build)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(
                number, lambda received, _: service.request_stop(signal.Signals(received).name)
            )
        service.prepare()
        if settings.config_errors:
            output.write_for_trainer(f"{WARNING_PREFIX}{ignored_text(settings.config_errors)}")
    except (ConfigError, NewerSchemaError) as error:
        raise error_exit("agent", str(error)) from None
    except (OSError, sqlite3.Error, StorageFailure) as error:
        # Not status 2: the trainer starts the agent again, since this may pass.
        print(f"sentinel agent: {describe_error(error)}", file=sys.stderr)
        raise typer.Exit(1) from None
    except AlreadyServedError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(0) from None
    try:
        service.serve()
    except AlreadyServedError as error:
        # Another agent started while this one waited for its storage.
        logging.getLogger(__name__).warning("%s", error)
        raise typer.Exit(0) from None
    except Exception as error:
        output.write_for_trainer(f"{type(error).__name__}: {error}")
        raise


def _yield_to_trainer() -> None:
    """Let the trainer have every core, and the kernel end the agent before it for lack of memory.

    `oom_score_adj` is from -1000 to 1000, and in thousandths of the memory: proc(5).
    """
    os.nice(10)
    # /proc may be read-only.
    with suppress(OSError):
        path = Path("/proc/self/oom_score_adj")
        path.write_text(str(min(int(path.read_text()) + OOM_SCORE_ABOVE_TRAINER, 1000)))


def _reject_mistyped(run: str) -> None:
    """Exit with an error if there is no such run, but one with a similar id."""
    from sentinel.transport.paths import list_runs

    runs = list_runs()
    # Beside a trainer, in a container of its own, an agent may start before the run exists.
    if run in runs or os.environ.get("SENTINEL_RUN_ID") == run:
        return
    if similar := similar_runs_text(run, may_be_new=True):
        raise error_exit(
            "agent",
            f"no run {run!r}. {similar} "
            f"To wait for a run that is not there yet, set SENTINEL_RUN_ID={run}.",
        )
    logging.getLogger(__name__).warning("There is no run %s yet: waiting for its first rank", run)
