"""Serves a run as its agent. It needs no typer, which an agent would load for nothing."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sentinel.agent.config_alert import ignored_text
from sentinel.agent.main import Agent
from sentinel.agent.output_log import OutputLog
from sentinel.agent.registration import AlreadyServedError
from sentinel.agent.run_service import RunService
from sentinel.client.spawn import EXIT_BAD_SETTINGS, WARNING_PREFIX
from sentinel.config.settings import ConfigError, Settings, load_agent_settings
from sentinel.store.database import NewerSchemaError
from sentinel.store.storage_monitor import StorageFailure, StorageMonitor
from sentinel.transport.paths import RunIdError, describe_error, list_runs, validate_run_id

OOM_SCORE_ABOVE_TRAINER = 500
"""By how much the agent's `oom_score_adj` is above that of the process that started it."""


def serve_run(run: str, environ: Mapping[str, str]) -> int:
    """Serve the run until it ends; `environ` has the settings. Returns the exit status."""
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
        _reject_mistyped(run)
        output = OutputLog(run)
        _yield_to_trainer()
        service = _prepare_service(run, load_agent_settings(environ), output)
    except (RunIdError, ConfigError, NewerSchemaError) as error:
        print(f"sentinel agent: {error}", file=sys.stderr)
        return EXIT_BAD_SETTINGS
    except (OSError, sqlite3.Error, StorageFailure) as error:
        # Not status 2: the trainer starts the agent again, since this may pass.
        print(f"sentinel agent: {describe_error(error)}", file=sys.stderr)
        return 1
    except AlreadyServedError as error:
        print(error, file=sys.stderr)
        return 0
    try:
        service.serve()
    except AlreadyServedError as error:
        # Another agent started while this one waited for its storage.
        logging.getLogger(__name__).warning("%s", error)
    except Exception as error:
        output.write_for_trainer(f"{type(error).__name__}: {error}")
        raise
    return 0


def _prepare_service(run: str, settings: Settings, output: OutputLog) -> RunService:
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
    return service


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
    """Raise RunIdError for an id without a run if another run has a similar one."""
    # Beside a trainer, in a container of its own, an agent may start before the run exists.
    if run in list_runs() or os.environ.get("SENTINEL_RUN_ID") == run:
        return
    # Only for an id without a run.
    from sentinel.store.run_names import similar_runs_text

    if similar := similar_runs_text(run, may_be_new=True):
        raise RunIdError(
            f"no run {run!r}. {similar} "
            f"To wait for a run that is not there yet, set SENTINEL_RUN_ID={run}."
        )
    logging.getLogger(__name__).warning("There is no run %s yet: waiting for its first rank", run)
