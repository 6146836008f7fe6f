"""One message through the library apprise, in a process that ends at the deadline.

A process of its own bounds the time of every service, keeps the library out of the agent, and
discards what it logs, which contains URLs.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from sentinel.model.delivery import AppriseCall, ProcessInput, Response
from sentinel.notify.transports import process

_WORKER_MODULE = "sentinel.notify.transports.apprise_worker"


def send(call: AppriseCall, *, deadline: float) -> Response:
    """Send once; the response is that of the last HTTP request, as far as there is one.

    An accepted message has status 200. Never raises.
    """
    arguments = (sys.executable, "-P", "-m", _WORKER_MODULE)
    work = ProcessInput(arguments, json.dumps(asdict(call)).encode(), deadline)
    try:
        result = process.run(work, deadline, process.environment(os.environ))
    except OSError as error:
        return Response(error=type(error).__name__)
    if result.error:
        return Response(error=result.error)
    try:
        return Response(**json.loads(result.body))
    except (ValueError, TypeError):
        return Response(error="AppriseError")
