"""Slow data: the data loader is too slow, and every GPU waits for it.

Evidence
    A share of each step spent waiting for the next batch, unlike before, is the main evidence; a
    run that has slowed and idle GPUs are effects. A single rank that waits has another cause, since
    the loader of the others is fast enough.

Source
    Mohan et al. 2021 (arXiv:2007.06775), who measured how often trainings wait for their data.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import StatedCause, slowdown_evidence, waits_alone, weighted_evidence
from sentinel.model.diagnosis import CaseContext, Evidence


class SlowData(StatedCause):
    """Diagnoses by the time that all ranks wait for data."""

    title = "slow data loading"
    explains = frozenset({
        "data_stall", "throughput_drop", "gpu_underuse",
    })  # fmt: skip
    sign = "steps are fast with one batch that is kept in memory"
    advice = (
        "Raise {number of data loader workers} to 4 to 8 per GPU, with `persistent_workers` and "
        "`prefetch_factor`, and do repeated work of the loader (tokenizing, decoding) once before "
        "the training. If the loader was fast enough before, check the storage first: another job "
        "that uses it, a full cache, files that are now remote."
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The wait and its effects; nothing if a single rank waits."""
        if "data_stall" not in context.symptoms or waits_alone(context):
            return
        yield from weighted_evidence(context, {"data_stall": 0.65})
        yield from slowdown_evidence(context, 0.4)
        yield from weighted_evidence(context, {"gpu_underuse": 0.3})
        if context.number("dataloader_num_workers") == 0.0:
            yield Evidence(
                0.3, "The data loader has 0 workers, so batches are loaded in the training process."
            )
