"""How the training in this process ended, as attributes of its STOP record."""

from __future__ import annotations

import os
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from sentinel.model.redaction import redact_line

MAX_CHAIN_LENGTH = 8
"""Number of exceptions that are followed from one to its cause."""
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[1])
_STDLIB_ROOT = str(Path(os.__file__).parent)
_PRIMITIVES = (str, bytes, int, float, complex, bool, type(None), os.PathLike)


def outcome_attributes(error: BaseException | None) -> dict[str, str]:
    """Attributes by the exception that left the training, if any.

    `outcome`; `code` of an exit; of an exception its class (`exception`), the first line of its
    message without secrets (`message`), the user's line that raised it (`location`), and class,
    message and line of the exception that caused it (`caused_by`). Unknown texts are left out.
    """
    if error is None or isinstance(error, GeneratorExit):
        return {"outcome": "finished"}
    if isinstance(error, KeyboardInterrupt):
        return {"outcome": "interrupted"}
    if isinstance(error, SystemExit):
        # Anything else than a number or None is printed, and exits with 1.
        is_number = error.code is None or isinstance(error.code, int)
        code = int(error.code or 0) if is_number else 1
        return {"outcome": "exit", "code": str(code)} if code else {"outcome": "finished"}
    attributes = {"outcome": "exception", "exception": type(error).__name__}
    try:
        attributes |= _error_attributes(error)
    except Exception:
        # The exception of the training is what counts, whatever its class does.
        return attributes
    return attributes


def _error_attributes(error: BaseException) -> dict[str, str]:
    chain = _chain(error)
    known = {"message": _message(error), "location": _location(error.__traceback__)}
    if len(chain) > 1:
        place = _location(chain[-1].__traceback__)
        known["caused_by"] = _summary(chain[-1]) + (f" ({place})" if place else "")
    return {name: text for name, text in known.items() if text}


def _chain(error: BaseException) -> list[BaseException]:
    """The exception, the one that it was raised from or during, and so on."""
    chain = [error]
    while len(chain) < MAX_CHAIN_LENGTH:
        last = chain[-1]
        cause = last.__cause__
        if cause is None and isinstance(last, BaseExceptionGroup):
            cause = last.exceptions[0]
        if cause is None and not last.__suppress_context__:
            cause = last.__context__
        if cause is None or any(cause is each for each in chain):
            break
        chain.append(cause)
    return chain


def _summary(error: BaseException) -> str:
    name, message = type(error).__name__, _message(error)
    return f"{name}: {message}" if message else name


def _message(error: BaseException) -> str:
    """The first line of the message, without secrets.

    An argument that is not a plain value is named by its type: the text of a tensor waits for its
    device.
    """
    arguments: tuple[Any, ...] = error.args
    # The text of a group is its own message and the number of its exceptions.
    is_group = isinstance(error, BaseExceptionGroup)
    if is_group or all(isinstance(each, _PRIMITIVES) for each in arguments):
        try:
            return redact_line(str(error))
        except Exception:
            return ""
    texts = [
        str(each) if isinstance(each, _PRIMITIVES) else f"<{type(each).__name__}>"
        for each in arguments
    ]
    return redact_line(" ".join(texts))


def _location(trace: TracebackType | None) -> str:
    """Place of the innermost frame in the user's code: "train.py:88 in train_step"; or ""."""
    location = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if _is_user_code(code):
            path = Path(code.co_filename)
            location = redact_line(f"{path.name}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    return location


def _is_user_code(code: CodeType) -> bool:
    """Whether it is neither of an installed package, nor of Python, nor of sentinel."""
    path = code.co_filename
    if path.startswith(("<", _PACKAGE_ROOT, _STDLIB_ROOT)):
        return False
    return "site-packages" not in path and "dist-packages" not in path
