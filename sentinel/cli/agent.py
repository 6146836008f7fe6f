"""`sentinel agent`: serve one run on this node. Trainers start it by themselves."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import typer


def agent(
    run: str = typer.Option(..., help="Run id, as in the name of the run's directory."),
    config: Path | None = typer.Option(None, help="A sentinel.toml to read."),
) -> None:
    """Watch one run until it is over: read its rings, judge, page, serve /metrics."""
    from sentinel.agent.main import Agent
    from sentinel.agent.registration import AlreadyServedError
    from sentinel.config.settings import ConfigError, load_settings
    from sentinel.store.database import NewerSchemaError
    from sentinel.transport.paths import RunIdError

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Whoever starts us may be holding signals back, which is inherited.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # The trainer comes first on every core.
    os.nice(10)
    # torch looks up the name of whoever connects, and a head's store stands still meanwhile: with a
    # DNS server that is silent, for longer than the others wait. Read at the first lookup.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:2")
    environ = os.environ if config is None else {**os.environ, "SENTINEL_CONFIG": str(config)}
    try:
        agent = Agent(run, load_settings(environ=environ))
    except (ConfigError, NewerSchemaError, RunIdError) as error:
        print(f"sentinel agent: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except AlreadyServedError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(0) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop_requested.set())
    agent.serve()
