"""MLflow: a tag for each case, and the tag `sentinel.health`, which show as columns of the runs.

A tracking server is asked over its REST API (`runs/get`, `runs/log-batch`). For files and
databases, which have no server, the library is used. Only tags that begin with `sentinel.` are
written.
Source: mlflow.org "REST API" 2.0, mlflow 3.17, read in November 2026.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import ConfigDict, SecretStr
from pydantic.dataclasses import dataclass

from sentinel.config.url_policy import check_url
from sentinel.sinks._tracker import TrackerSink


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Mlflow(TrackerSink):
    """`tracking_uri` and `run_id` are by default those that the training logs to.

    `token`, or `username` and `password`, log in at a server, by default with MLflow's own
    variables, MLFLOW_TRACKING_TOKEN, _USERNAME and _PASSWORD. `allow_http` permits an unencrypted
    server on another machine.
    """

    tracking_uri: str = ""
    run_id: str = ""
    token: SecretStr | None = None
    username: str = ""
    password: SecretStr | None = None
    allow_http: bool = False

    can_update: ClassVar[bool] = True
    tracker: ClassVar[str] = "mlflow"
    title: ClassVar[str] = "MLflow"

    def __post_init__(self) -> None:
        if (self.token or self.password) and not self.tracking_uri:
            # What the training reports does not decide where a secret is sent.
            raise ValueError("`token` and `password` need `tracking_uri`")
        if self.tracking_uri.startswith(("http://", "https://")):
            check_url("tracking_uri", self.tracking_uri, allow_http=self.allow_http)
        self.tracking_uri = self.tracking_uri.rstrip("/")
