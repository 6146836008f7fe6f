"""The file by which `sentinel open` finds a running `sentinel serve` of this node and user."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from sentinel.model.json_safe import parse_object
from sentinel.transport.paths import home_dir, runtime_dir
from sentinel.transport.replaced_file import replace_file

ANSWER_TIMEOUT_SECONDS = 1.0


def register_server(url: str) -> Path:
    """Write the address of this process, which serves the home directory. Raises OSError."""
    path = _path(make=True)
    content = {"url": url, "pid": os.getpid(), "home": str(home_dir().absolute())}
    replace_file(path, json.dumps(content).encode())
    return path


def unregister_server() -> None:
    """Remove the file, unless another process has replaced it."""
    with suppress(OSError):
        path = _path(make=False)
        if parse_object(path.read_text()).get("pid") == os.getpid():
            path.unlink()


def find_server() -> str:
    """The address of a server of the home directory that answers; empty if there is none."""
    try:
        registration = parse_object(_path(make=False).read_text())
    except OSError:
        return ""
    url = str(registration.get("url", ""))
    if registration.get("home") != str(home_dir().absolute()):
        return ""
    # The server itself, which writes the file, needs no HTTP client.
    import requests  # noqa: PLC0415

    with requests.Session() as session:
        session.trust_env = False
        try:
            # The certificate is not checked: nothing is sent, and nothing but the answer counts.
            answer = session.get(f"{url}/-/healthy", timeout=ANSWER_TIMEOUT_SECONDS, verify=False)
        except requests.RequestException:
            return ""
    return url if answer.ok and answer.text == "ok\n" else ""


def _path(*, make: bool) -> Path:
    # The address is that of this node; the name is none of a run.
    return runtime_dir(make=make) / ".serve.json"
