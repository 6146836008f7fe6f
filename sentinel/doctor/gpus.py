"""GPUs: whether the driver tells the agent of them, and what it tells that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty, Queue
from threading import Thread

from sentinel.doctor.check_result import CheckResult, fail, ok, warn
from sentinel.live.node.nvml import NvmlNotInstalledError, NvmlReader
from sentinel.signals.hardware import Gpu

DRIVER_TIMEOUT_SECONDS = 20.0
"""Seconds that the driver is given to answer."""

PollGpus = Callable[[], list[Gpu]]


def check_gpus(poll: PollGpus | None = None) -> Iterator[CheckResult]:
    """The GPUs of this node, one by one where something is wrong with one."""
    try:
        found = _poll_with_timeout(poll or NvmlReader().read_gpus)
    except NvmlNotInstalledError as error:
        how = str(error).partition(": ")[2]
        yield fail("gpus", "not measured, for want of nvidia-ml-py", how)
    except Empty:
        remedy = "look at dmesg for Xid; a driver that hangs needs the node to be restarted"
        yield fail(
            "gpus", f"the driver has not answered for {DRIVER_TIMEOUT_SECONDS:.0f} s", remedy
        )
    except Exception as error:
        remedy = "nvidia-smi should say the same; the driver is the node's to mend"
        yield fail("gpus", f"cannot be measured ({type(error).__name__}: {error})", remedy)
    else:
        names = ", ".join(sorted({gpu.name for gpu in found if gpu.name}))
        yield ok("gpus", f"{len(found)} measured ({names})" if found else "none on this machine")
        for gpu in found:
            yield from _check_gpu(gpu)


def _check_gpu(gpu: Gpu) -> Iterator[CheckResult]:
    subject = f"gpu {gpu.index}"
    if gpu.is_lost:
        yield fail(subject, "does not answer: it fell off its bus", "restart the node")
    if errors := gpu.values.get("gpu_ecc_errors"):
        remedy = "results may be wrong: stop using it, and reset or replace it"
        yield fail(subject, f"{errors:.0f} memory errors that could not be corrected", remedy)
    if gpu.throttle_reasons:
        remedy = "if it lasts while training, look at cooling and at the power limit"
        yield warn(subject, f"clock held down ({', '.join(gpu.throttle_reasons)})", remedy)


def _poll_with_timeout(poll: PollGpus) -> list[Gpu]:
    """What `look` gives or raises, or Empty if it has not come back in time."""
    answers: Queue[list[Gpu] | Exception] = Queue()

    def ask() -> None:
        try:
            answers.put(poll())
        except Exception as error:
            answers.put(error)

    Thread(target=ask, name="sentinel-gpus", daemon=True).start()
    answer = answers.get(timeout=DRIVER_TIMEOUT_SECONDS)
    if isinstance(answer, Exception):
        raise answer
    return answer
