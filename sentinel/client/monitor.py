"""`sentinel.monitor`: the decorator or context manager that monitors a training function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar, overload

from sentinel.client.arguments import MonitorArguments, SettingsError, parse_arguments
from sentinel.client.control.command_executor import CommandContext
from sentinel.client.session import enter_session, leave_session

Function = TypeVar("Function", bound=Callable[..., Any])
CriticalAction: TypeAlias = "Literal['checkpoint', 'stop'] | Callable[[CommandContext], object]"


class Monitor:
    """Monitors a training run: decorates a function, or is entered with `with`."""

    def __init__(self, arguments: MonitorArguments) -> None:
        self.arguments = arguments

    def __call__(self, function: Function) -> Function:
        """The function, monitored; name, signature, result and exceptions stay the same."""
        if isinstance(function, staticmethod | classmethod):
            return type(function)(self(function.__func__))
        if isinstance(function, type) or not callable(function):
            kind = "class" if isinstance(function, type) else type(function).__name__
            raise SettingsError(f"monitor decorates a function, not a {kind}: decorate its method.")
        wrapped: Any = functools.wraps(function)(self._wrap(function))
        return wrapped  # type: ignore[no-any-return]

    def __enter__(self) -> Self:
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
        for matches, wrap in _WRAPPERS:
            if matches(function):
                return wrap(self, function)
        return _wrap_function(self, function)


def _wrap_function(monitor: Monitor, function: Callable[..., Any]) -> Callable[..., Any]:
    def monitored(*args: Any, **kwargs: Any) -> Any:
        with monitor:
            result: Any = function(*args, **kwargs)
            return result

    return monitored


def _wrap_coroutine(monitor: Monitor, function: Callable[..., Any]) -> Callable[..., Any]:
    async def monitored(*args: Any, **kwargs: Any) -> Any:
        with monitor:
            return await function(*args, **kwargs)

    return monitored


def _wrap_generator(monitor: Monitor, function: Callable[..., Any]) -> Callable[..., Any]:
    def monitored(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with monitor:
            return (yield from function(*args, **kwargs))

    return monitored


def _wrap_async_generator(monitor: Monitor, function: Callable[..., Any]) -> Callable[..., Any]:
    async def monitored(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        with monitor:
            generator = function(*args, **kwargs)
            try:
                item = await generator.asend(None)
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        item = await generator.athrow(error)
                    else:
                        item = await generator.asend(sent)
            except StopAsyncIteration:
                return
            finally:
                await generator.aclose()

    return monitored


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
    checks: bool = True,
    samples: int = 0,
    insight: Literal["gradient_flow"] | Iterable[Literal["gradient_flow"]] | None = None,
    metadata: Mapping[str, str | float] | None = None,
    tier: Literal["page", "notify", "quiet"] | None = None,
    on_critical: CriticalAction | Iterable[CriticalAction] | None = None,
) -> Monitor: ...


def monitor(function: Any = None, /, **settings: Any) -> Any:
    """Monitor a training run: as a decorator, bare or with arguments, or in a `with` statement.

    - `run` names the run.
    - `save_steps` and `max_steps` are the limits configured in the trainer; detectors compare the
      run with them.
    - `config` is the settings file of the agent; `agent=False` records without starting an agent.
    - `aggregate="collective"` gathers the ranks through the training's own `torch.distributed`;
      only the node of rank 0 then needs an agent. See docs/collective.md.
    - `strict=True` raises sentinel's own errors, for tests.
    - `checks=False` switches off the checks of weights, gradients, modes, replicas, batches and
      schedule. See docs/checks.md.
    - `samples` is the number of texts recorded of each batch that a framework generates. With 0,
      only `sentinel.log_samples` records texts.
    - `insight="gradient_flow"` measures the gradient of each layer at some steps, for at most 1 %
      of the time of a step. See docs/gradient-flow.md.
    - `metadata` holds hyper-parameters to store with the run, as numbers and texts.
    - `tier` is the importance of the run: "page", "notify" or "quiet".
    - `on_critical` is what every rank does, at the same step, when a case becomes critical:
      "checkpoint", "stop", or a function that receives a `CommandContext`. See docs/actions.md.

    With `SENTINEL_OFF=1` in the environment, `monitor` does nothing. Raises SettingsError for an
    unknown argument or an invalid value.
    """
    decorator = Monitor(parse_arguments(settings))
    return decorator if function is None else decorator(function)
