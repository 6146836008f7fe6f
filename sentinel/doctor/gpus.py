"""Checks of the GPUs: whether the driver answers, and which faults it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty, Queue
from threading import Thread

from sentinel.doctor.check_result import CheckResult, fail, ok, warn
from sentinel.live.node.nvml import NvmlNotInstalledError, NvmlReader
from sentinel.signals.hardware import Gpu

DRIVER_TIMEOUT_SECONDS = 20.0
"""Seconds in which the driver must answer."""

PollGpus = Callable[[], list[Gpu]]


def check_gpus(poll: PollGpus | None = None) -> Iterator[CheckResult]:
    """One result for all GPUs of this node, and one for each fault of a GPU."""
    try:
        gpus = _poll_with_timeout(poll or NvmlReader().read_gpus)
    except NvmlNotInstalledError as error:
        remedy = str(error).partition(": ")[2]
        yield fail("gpus", "not measured: nvidia-ml-py is not installed", remedy)
    except Empty:
        remedy = "search dmesg for Xid; if the driver hangs, restart the node"
        yield fail(
            "gpus", f"the driver has not answered within {DRIVER_TIMEOUT_SECONDS:.0f} s", remedy
        )
    except Exception as error:
        remedy = "check nvidia-smi and the driver of this node"
        yield fail("gpus", f"cannot be measured ({type(error).__name__}: {error})", remedy)
    else:
        names = ", ".join(sorted({gpu.name for gpu in gpus if gpu.name}))
        yield ok("gpus", f"{len(gpus)} measured ({names})" if gpus else "none on this machine")
        for gpu in gpus:
            yield from _check_gpu(gpu)


def _check_gpu(gpu: Gpu) -> Iterator[CheckResult]:
    subject = f"gpu {gpu.index}"
    if gpu.is_lost:
        yield fail(subject, "does not answer: it has fallen off the bus", "restart the node")
    if errors := gpu.values.get("gpu_ecc_errors"):
        remedy = "results may be wrong: stop using it, then reset or replace it"
        yield fail(subject, f"{errors:.0f} uncorrectable memory errors", remedy)
    if gpu.throttle_reasons:
        remedy = "if it lasts during training, check cooling and the power limit"
        yield warn(subject, f"clock is throttled ({', '.join(gpu.throttle_reasons)})", remedy)


def _poll_with_timeout(poll: PollGpus) -> list[Gpu]:
    """Returns or raises what `poll` does. Raises Empty if it does not return in time."""
    answers: Queue[list[Gpu] | Exception] = Queue()

    def run() -> None:
        try:
            answers.put(poll())
        except Exception as error:
            answers.put(error)

    Thread(target=run, name="sentinel-gpus", daemon=True).start()
    answer = answers.get(timeout=DRIVER_TIMEOUT_SECONDS)
    if isinstance(answer, Exception):
        raise answer
    return answer
