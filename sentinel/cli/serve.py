"""`sentinel serve`: the pages of all runs of this user, live and past."""

from __future__ import annotations

import getpass
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import typer

from sentinel.cli._options import error_exit, settings_environ

if TYPE_CHECKING:
    from sentinel.config.settings import Settings
    from sentinel.web.home.home_runs import HomeRuns
    from sentinel.web.home.home_site import RunSource
    from sentinel.web.http_server import Site
    from sentinel.web.logs.log_runs import LogRuns
    from sentinel.web.server import WebServer

DEFAULT_PORT = 13120
AGENT_TIMEOUT_SECONDS = 1.0
"""An agent that does not answer in time: its run is shown from the database."""
SSH_PORT = "22"


def serve(
    directory: Path | None = typer.Argument(
        None, help="Home directory of sentinel, by default $SENTINEL_HOME, or a folder with logs."
    ),
    port: int = typer.Option(
        DEFAULT_PORT, min=0, max=65535, help="Port, or the next free one; 0: any free port."
    ),
    host: str | None = typer.Option(
        None, help="Address to listen on; one that others can reach needs a token or a login."
    ),
    config: Path | None = typer.Option(None, help="Settings file (sentinel.toml)."),
    allow_actions: bool = typer.Option(
        False,
        "--allow-actions",
        help="Let coding agents at /mcp acknowledge, silence, request a checkpoint or a stop.",
    ),
) -> None:
    """Serve a web page with all runs: those that train now, and those that ended.

    With a folder of logs (TensorBoard, W&B offline, JSON lines and others) or one log, each log is
    a run. Of a home directory, it reads the databases, and asks the agents of live runs. The page
    of a run has the same path as on its agent, /runs/<run>/, so links in notifications keep working
    after the run if both have the same `public_url`. With train-sentinel[mcp], coding agents can
    connect to /mcp, see `sentinel mcp`.

    Exit status: 0 after Ctrl-C or SIGTERM, 2 if the settings, the directory or the port cannot be
    used.
    """
    from sentinel.agent.dead_run_closer import DeadRunCloser
    from sentinel.agent.serve_registration import register_server, unregister_server
    from sentinel.config.settings import ConfigError, load_settings
    from sentinel.transport.paths import describe_error, home_dir

    logs = use_directory(directory)
    try:
        environ = settings_environ(config)
        settings = load_settings({"host": host}, environ=environ)
        runs = home_runs() if logs is None else log_runs(logs, environ)
        server = build_server(settings, port, runs, make_site(runs, allow_actions=allow_actions))
        used = server.start()
        url = _local_url(settings, server, used)
        if logs is None:
            register_server(url)
    except (ConfigError, ValueError) as error:
        raise error_exit("serve", str(error)) from None
    except OSError as error:
        raise error_exit("serve", describe_error(error)) from None
    stopped = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    if port and used != port:
        print(f"Port {port} is in use: this server has port {used}.", file=sys.stderr, flush=True)
    print(f"Serving the runs of {logs or home_dir()} at {settings.public_url or url}/", flush=True)
    if hint := tunnel_command(os.environ, f"{url}/"):
        print(f"From your own machine: {hint}", flush=True)
    closer = DeadRunCloser(settings)
    if logs is None:
        closer.start()
    stopped.wait()
    if logs is None:
        unregister_server()
    runs.close()
    server.stop()
    closer.stop()
    # A thread that waits for a file server would not end.
    os._exit(0)


def use_directory(directory: Path | None) -> Path | None:
    """Use the directory as the home of sentinel if it is one; else it is returned, with logs."""
    if directory is None:
        return None
    if not _is_home(directory):
        return directory
    os.environ["SENTINEL_HOME"] = str(directory.absolute())
    return None


def make_site(runs: RunSource, *, allow_actions: bool) -> Site | None:
    """The pages with the tools for coding agents; None if the package for these is not installed.

    Exits with an error if actions are allowed without it.
    """
    from importlib.util import find_spec

    from sentinel.cli.mcp import INSTALL_HINT
    from sentinel.web.home.home_site import HomeSite

    if find_spec("mcp") is None:
        if allow_actions:
            raise error_exit("serve", INSTALL_HINT)
        return None
    from sentinel.mcp.http_site import McpSite

    return McpSite(HomeSite(runs), runs, allow_actions=allow_actions)


def _is_home(directory: Path) -> bool:
    """Whether it is a home directory of sentinel, and no folder with logs."""
    from sentinel.store.run_summary import SUMMARY_NAME
    from sentinel.transport.paths import DATABASE_NAME, home_dir

    return directory.absolute() == home_dir().absolute() or any(
        any((directory / "runs").glob(f"*/{name}")) for name in (DATABASE_NAME, SUMMARY_NAME)
    )


def log_runs(folder: Path, environ: Mapping[str, str]) -> LogRuns:
    """The logs at or below a folder, which need not exist yet. Raises ConfigError, OSError."""
    from sentinel.config.settings import load_replay_settings
    from sentinel.web.logs.log_runs import LogRuns

    # The processes that import logs read the same settings.
    os.environ.update(environ)
    runs = LogRuns(folder, load_replay_settings((), environ))
    runs.start()
    return runs


def home_runs() -> HomeRuns:
    """The runs of the home directory."""
    from sentinel.agent.discovery import query_agent
    from sentinel.agent.registration import REGISTRATION_NAME
    from sentinel.model.json_safe import parse_object
    from sentinel.transport.paths import is_agent_running
    from sentinel.web.home.home_runs import HomeRuns

    def ask_agent(run_directory: Path) -> dict[str, Any] | None:
        try:
            registration = parse_object((run_directory / REGISTRATION_NAME).read_text())
        except OSError:
            return {}
        is_here = registration.get("node") == os.uname().nodename
        if is_here and not is_agent_running(run_directory):
            return {}
        return query_agent(run_directory / REGISTRATION_NAME, AGENT_TIMEOUT_SECONDS).state or None

    runs = HomeRuns(ask_agent)
    runs.start()
    return runs


def build_server(
    settings: Settings, port: int, runs: RunSource, site: Site | None = None
) -> WebServer:
    """The server of these runs, by default with their pages. Raises ConfigError, ValueError."""
    from sentinel.web.home.home_site import HomeSite
    from sentinel.web.server import WebServer

    return WebServer(
        lambda: site or HomeSite(runs),
        host=settings.host,
        port=port,
        port_tries=settings.port_tries,
        token=settings.secret_token(),
        web_config_file=settings.web_config_file,
        public_url=settings.public_url,
    )


def tunnel_command(environ: Mapping[str, str], url: str) -> str:
    """The command that makes the page reachable from where an SSH session came from; or "".

    >>> environ = {"SSH_CONNECTION": "192.0.2.9 51000 192.0.2.1 22", "USER": "ana"}
    >>> tunnel_command(environ, "http://127.0.0.1:13120/")
    'ssh -N -L 13120:127.0.0.1:13120 ana@192.0.2.1, then open http://127.0.0.1:13120/'
    """
    from urllib.parse import urlsplit

    from sentinel.config.url_policy import is_loopback

    parts = environ.get("SSH_CONNECTION", "").split()
    address = urlsplit(url)
    if len(parts) != len(("client", "its port", "server", "its port")):
        return ""
    if not is_loopback(address.hostname or ""):
        return ""
    host, port = parts[2:]
    user = environ.get("USER") or getpass.getuser()
    option = "" if port == SSH_PORT else f"-p {shlex.quote(port)} "
    target = shlex.quote(f"{user}@{host}")
    forward = f"{address.port}:{address.netloc}"
    return f"ssh -N {option}-L {forward} {target}, then open {url}"


def _local_url(settings: Settings, server: WebServer, port: int) -> str:
    from sentinel.agent.registration import listening_url

    return listening_url(settings.host, port, server.certificate_file)
