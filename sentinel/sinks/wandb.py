"""W&B: an alert of the run, and a tag that shows in the table of runs.

The mutations are those of W&B's client: `notifyScriptableRunAlert`, which `run.alert` sends, and
`upsertBucket` with nothing but the tags, as the web page sends when tags are edited. Neither
touches the history, the summary or the configuration, which the training process owns; a summary
that another process writes is overwritten by the training. An alert is sent by e-mail or Slack
according to the user's settings there.
Source: wandb 0.31, docs.wandb.ai "Send an alert", github.com/wandb/wandb issue 4882, read in
November 2026.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import ConfigDict, SecretStr, field_validator
from pydantic.dataclasses import dataclass

from sentinel.config.url_policy import check_url
from sentinel.sinks._tracker import TrackerSink

_RUN_PARTS = 3


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Wandb(TrackerSink):
    """`api_key` is by default that of WANDB_API_KEY or of ~/.netrc, as for W&B itself.

    `run` is `entity/project/run-id`, by default the run that the training logs to. `base_url` is
    the address of a server of your own; by default that of the run, or with `api_key` that of
    WANDB_BASE_URL, else api.wandb.ai. `tags` is whether the run gets
    a tag `sentinel:<cause>`. `allow_http` permits an unencrypted server.
    """

    api_key: SecretStr | None = None
    run: str = ""
    base_url: str = ""
    tags: bool = True
    allow_http: bool = False

    can_update: ClassVar[bool] = False
    for_programs: ClassVar[bool] = False
    tracker: ClassVar[str] = "wandb"
    title: ClassVar[str] = "W&B"

    def __post_init__(self) -> None:
        if self.base_url:
            check_url("base_url", self.base_url, allow_http=self.allow_http)
        self.base_url = self.base_url.rstrip("/")

    @field_validator("run")
    @classmethod
    def _check_run(cls, run: str) -> str:
        if run and (run.count("/") != _RUN_PARTS - 1 or not all(run.split("/"))):
            raise ValueError("must be entity/project/run-id")
        return run
