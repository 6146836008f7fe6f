"""`GET /sd`: the agents of the home directory, for the HTTP service discovery of Prometheus."""

from __future__ import annotations

import json
import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sentinel.transport.paths import home_dir

log = logging.getLogger(__name__)

MAX_TARGETS = 10_000


def answer_targets(_: Request) -> Response:
    """Target groups as Prometheus expects them: those of the files for its file discovery."""
    groups: list[Any] = []
    # An agent that ends removes its file.
    for path in sorted((home_dir() / "targets").glob("*.json"))[:MAX_TARGETS]:
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            log.debug("%s is left out: %s", path, error)
            continue
        # Prometheus refuses an answer with anything but groups as a whole.
        groups += (
            [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
        )
    return JSONResponse(groups)
