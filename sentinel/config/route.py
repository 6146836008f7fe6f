"""The settings that every sink has beside its own: which notifications it gets, and when."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from fnmatch import fnmatchcase
from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, field_validator

from sentinel.model.finding import Severity

_QUIET_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)\s*-\s*([01]\d|2[0-3]):([0-5]\d)")


class Route(BaseModel):
    """Which notifications a sink gets.

    It gets those of at least `min_severity`, of runs whose name matches one of the patterns `runs`
    (`*` stands for any text) and whose setting `team` is one of `teams`; an empty list permits all.
    Between the times of `quiet_hours`, such as 22:00-07:00 in `timezone`, it gets critical ones
    only. `timezone` is a name such as Europe/Berlin, by default that of the machine.
    """

    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, frozen=True, defer_build=True
    )

    min_severity: Literal["info", "warning", "critical"] = "info"
    runs: list[str] = []
    teams: list[str] = []
    quiet_hours: str = ""
    timezone: str = ""

    @field_validator("quiet_hours")
    @classmethod
    def _check_quiet_hours(cls, hours: str) -> str:
        match = _QUIET_HOURS.fullmatch(hours.strip())
        if hours and (match is None or match.groups()[:2] == match.groups()[2:]):
            raise ValueError("must be two different times such as 22:00-07:00")
        return hours.strip()

    @field_validator("timezone")
    @classmethod
    def _check_timezone(cls, name: str) -> str:
        try:
            _zone(name)
        except (OSError, ValueError, LookupError):
            raise ValueError("is no time zone known here, such as Europe/Berlin") from None
        return name

    def permits(self, run: str, team: str, severity: Severity) -> bool:
        """Whether the sink gets a notification of that severity from a run of that team."""
        return (
            severity.order <= Severity(self.min_severity).order
            and (not self.runs or any(fnmatchcase(run, pattern) for pattern in self.runs))
            and (not self.teams or team in self.teams)
        )

    def quiet_until(self, now: float) -> float | None:
        """The end of the quiet hours in which `now` is; None outside. Both in epoch seconds."""
        match = _QUIET_HOURS.fullmatch(self.quiet_hours)
        if match is None:
            return None
        start_hour, start_minute, end_hour, end_minute = map(int, match.groups())
        local = datetime.fromtimestamp(now, _zone(self.timezone))
        start, end, minute = (
            start_hour * 60 + start_minute,
            end_hour * 60 + end_minute,
            local.hour * 60 + local.minute,
        )
        is_quiet = start <= minute < end if start < end else minute >= start or minute < end
        if not is_quiet:
            return None
        ends_at = local.replace(hour=end_hour, minute=end_minute, second=0, microsecond=0)
        if ends_at <= local:
            ends_at += timedelta(days=1)
        return ends_at.timestamp()


def _zone(name: str) -> tzinfo | None:
    return ZoneInfo(name) if name else None
