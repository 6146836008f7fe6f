"""Command: runs a program of the user with the notification as JSON on its standard input.

The JSON object is the body that the webhook sends. There is no shell, so no text in it is ever
executed. The program gets no settings of sentinel in its environment. Exit status 0 accepts the
notification, 65 (`EX_DATAERR`) rejects it for good, as does a program that does not exist or is not
executable, and any other status, a signal or the time-out means that it is tried again.
Source: POSIX.1-2017, `posix_spawn`, and sysexits(3) for the statuses.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass

from sentinel.model.delivery import ProcessInput, Rejection, Response
from sentinel.model.notification import Notification
from sentinel.sinks._alertmanager_body import alertmanager_body

_REJECTED_STATUS = 65


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class Command:
    """`arguments` is the program and its arguments, `["/usr/local/bin/page", "--team", "a"]`.

    It is ended `timeout` seconds after its start, at most 60.
    """

    arguments: Annotated[list[str], Field(min_length=1)]
    timeout: Annotated[float, Field(gt=0, le=60)] = 30.0

    can_update: ClassVar[bool] = False
    for_programs: ClassVar[bool] = True

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, arguments: list[str]) -> list[str]:
        if not arguments[0] or any("\0" in each for each in arguments):
            raise ValueError("must begin with the path or name of a program")
        return arguments

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> ProcessInput:
        """The program and its input."""
        del receipt
        return ProcessInput(
            tuple(self.arguments), alertmanager_body(notification, delivery_id), self.timeout
        )

    def is_accepted(self, response: Response) -> bool:
        """Whether the program ended with exit status 0."""
        return not response.error and response.status == 0

    def receipt(self, response: Response) -> None:
        """None: a program gets each notification once."""
        del response

    def rejection(self, response: Response) -> Rejection | None:
        """Exit status 65 is final; what else goes wrong may be over at the next try.

        None if there is no status: a program that does not exist is rejected for good.
        """
        if response.error:
            return None
        is_final = response.status == _REJECTED_STATUS
        return Rejection.PERMANENT if is_final else Rejection.TEMPORARY

    def explain(self, response: Response) -> str:
        """What the end of the program means."""
        if response.error in {"FileNotFoundError", "PermissionError"}:
            return "The program is not found or not executable: check the path in arguments."
        if response.error:
            return ""
        return "The program did not end with status 0: run it by hand with a JSON file as input."
