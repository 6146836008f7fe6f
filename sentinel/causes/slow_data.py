"""Slow data: the loader no longer keeps up, and every GPU waits for it.

Clues
    A share of each step spent waiting for the next batch, where that was not so before, is the
    heart of it; a run that has slowed and GPUs that idle follow. A rank that alone waits is
    another matter: the loader of the others keeps up.

Source
    Mohan et al. 2021 (arXiv:2007.06775), who measured how often trainings wait for their data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting


class SlowData:
    """Judges by the time that all ranks wait for data."""

    title: ClassVar[str] = "training waits for its data"
    explains: ClassVar[frozenset[str]] = frozenset({
        "data_stall", "throughput_drop", "gpu_underuse",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The wait, and what it costs; nothing where it is one rank's."""
        waits, last = context.symptoms.get("data_stall"), context.symptoms.get("straggler")
        alone = last is not None and last.evidence.get("signal", "data_wait") == "data_wait"
        if waits is None or alone:
            return
        yield from symptom_evidence(waits, 0.65)
        yield from symptom_evidence(context.symptoms.get("throughput_drop"), 0.4)
        yield from symptom_evidence(context.symptoms.get("gpu_underuse"), 0.3)
        workers = context.number("dataloader_num_workers")
        if workers == 0.0:
            yield Evidence(0.3, "The loader has 0 workers: it works while the training waits.")

    def remedy(self, context: CaseContext) -> str:
        """More hands, and less to do."""
        return (
            f"Raise {describe_setting('data loader workers', context.metadata)} to some 4 to 8 for each GPU, with "
            "`persistent_workers` and `prefetch_factor`, and do once before the training what the "
            "loader does each time (tokenizing, decoding). If it kept up until then, look at the "
            "storage first: another job on it, a cache that is full, files that are remote now."
        )
