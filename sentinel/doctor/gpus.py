"""GPUs: whether the driver tells the agent of them, and what it tells that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty, Queue
from threading import Thread

from sentinel.doctor.check_result import Remark, mend, note, well
from sentinel.live.node.nvml import NoLibraryError, Nvml
from sentinel.model.hardware import Gpu

PATIENCE = 20.0
"""Seconds that the driver is given to answer."""

Look = Callable[[], list[Gpu]]


def gpus(look: Look | None = None) -> Iterator[Remark]:
    """The GPUs of this node, one by one where something is wrong with one."""
    try:
        found = _answer(look or Nvml().look)
    except NoLibraryError as error:
        how = str(error).partition(": ")[2]
        yield mend("gpus", "not measured, for want of nvidia-ml-py", how)
    except Empty:
        remedy = "look at dmesg for Xid; a driver that hangs needs the node to be restarted"
        yield mend("gpus", f"the driver has not answered for {PATIENCE:.0f} s", remedy)
    except Exception as error:
        remedy = "nvidia-smi should say the same; the driver is the node's to mend"
        yield mend("gpus", f"cannot be measured ({type(error).__name__}: {error})", remedy)
    else:
        names = ", ".join(sorted({gpu.name for gpu in found if gpu.name}))
        yield well("gpus", f"{len(found)} measured ({names})" if found else "none on this machine")
        for gpu in found:
            yield from _judged(gpu)


def _judged(gpu: Gpu) -> Iterator[Remark]:
    subject = f"gpu {gpu.index}"
    if gpu.lost:
        yield mend(subject, "does not answer: it fell off its bus", "restart the node")
    if errors := gpu.values.get("gpu_ecc_errors"):
        remedy = "results may be wrong: stop using it, and reset or replace it"
        yield mend(subject, f"{errors:.0f} memory errors that could not be corrected", remedy)
    if gpu.throttled:
        remedy = "if it lasts while training, look at cooling and at the power limit"
        yield note(subject, f"clock held down ({', '.join(gpu.throttled)})", remedy)


def _answer(look: Look) -> list[Gpu]:
    """What `look` gives or raises, or Empty if it has not come back in time."""
    answers: Queue[list[Gpu] | Exception] = Queue()

    def ask() -> None:
        try:
            answers.put(look())
        except Exception as error:
            answers.put(error)

    Thread(target=ask, name="sentinel-gpus", daemon=True).start()
    answer = answers.get(timeout=PATIENCE)
    if isinstance(answer, Exception):
        raise answer
    return answer
