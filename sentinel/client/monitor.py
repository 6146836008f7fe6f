"""Monitor: the one word that makes a training function watched."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar, overload

from sentinel.client.arguments import MonitorArguments, SettingsError, parse_arguments
from sentinel.client.control.command_executor import CommandContext
from sentinel.client.session import enter_session, leave_session

Function = TypeVar("Function", bound=Callable[..., Any])
CriticalAction: TypeAlias = "Literal['checkpoint', 'stop'] | Callable[[CommandContext], object]"


class Monitor:
    """A training run being watched: decorates a function, or is entered with `with`."""

    def __init__(self, arguments: MonitorArguments) -> None:
        self.arguments = arguments

    def __call__(self, function: Function) -> Function:
        """The function, watched; its name, signature, result and exceptions are its own."""
        if isinstance(function, staticmethod | classmethod):
            return type(function)(self(function.__func__))
        if isinstance(function, type) or not callable(function):
            kind = "class" if isinstance(function, type) else type(function).__name__
            raise SettingsError(f"monitor watches a function, not a {kind}: decorate its method.")
        wrapped: Any = functools.wraps(function)(self._wrap(function))
        return wrapped  # type: ignore[no-any-return]

    def __enter__(self) -> Monitor:
        enter_session(self.arguments)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave_session(error)

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        for fits, wrap in _WRAPPERS:
            if fits(function):
                return wrap(self, function)
        return _wrap_function(self, function)


def _wrap_function(monitor: Monitor, function: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        with monitor:
            result: Any = function(*args, **kwargs)
            return result

    return watched


def _wrap_coroutine(monitor: Monitor, function: Callable[..., Any]) -> Callable[..., Any]:
    async def watched(*args: Any, **kwargs: Any) -> Any:
        with monitor:
            return await function(*args, **kwargs)

    return watched


def _wrap_generator(monitor: Monitor, function: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with monitor:
            return (yield from function(*args, **kwargs))

    return watched


def _wrap_async_generator(monitor: Monitor, function: Callable[..., Any]) -> Callable[..., Any]:
    async def watched(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        with monitor:
            theirs = function(*args, **kwargs)
            try:
                item = await theirs.asend(None)
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        item = await theirs.athrow(error)
                    else:
                        item = await theirs.asend(sent)
            except StopAsyncIteration:
                return
            finally:
                await theirs.aclose()

    return watched


_WRAPPERS = (
    (inspect.iscoroutinefunction, _wrap_coroutine),
    (inspect.isasyncgenfunction, _wrap_async_generator),
    (inspect.isgeneratorfunction, _wrap_generator),
)


@overload
def monitor(function: Function, /) -> Function: ...


@overload
def monitor(
    *,
    run: str | None = None,
    save_steps: int | None = None,
    max_steps: int | None = None,
    config: str | PathLike[str] | None = None,
    agent: bool = True,
    aggregate: Literal["agent", "collective"] = "agent",
    strict: bool = False,
    samples: int = 0,
    metadata: Mapping[str, str | float] | None = None,
    tier: Literal["page", "notify", "quiet"] | None = None,
    on_critical: CriticalAction | Iterable[CriticalAction] | None = None,
) -> Monitor: ...


def monitor(function: Any = None, /, **settings: Any) -> Any:
    """Watch a training run: as a decorator, bare or with settings, or in a `with` statement.

    `run` names the run. `save_steps` and `max_steps` are what the trainer was told, so that it can
    be held to it. `config` is the agent's settings file; `agent=False` records without starting
    one. `aggregate="collective"` brings the ranks together through the training's own
    `torch.distributed`, where only the node of rank 0 may have an agent; see docs/collective.md.
    `facts` are hyper-parameters worth remembering. `samples` is how many texts are taken of
    each batch that a framework generates; at 0 none are, unless `sentinel.log_samples` is called.
    `tier` says how much the run matters to people: "page", "notify" or "quiet". `on_critical` is
    what is asked of every rank, at one and the same step, when a case turns critical: "checkpoint",
    "stop", or a function that is given `sentinel.client.control.command_executor.Asked`; see
    docs/actions.md.
    `strict` lets our own errors through, for tests. With `SENTINEL_OFF=1` in the environment
    nothing happens at all. Raises SettingsError for a setting that is unknown or of the wrong kind.
    """
    watching = Monitor(parse_arguments(settings))
    return watching if function is None else watching(function)
