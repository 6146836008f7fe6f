"""The context that a cause receives: symptoms, restarts and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from support.case_books import CaseBookDriver, Storm, opened

from sentinel.model.diagnosis import RESUMED_STEP_KEY, CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState, Onset
from sentinel.model.record import Event
from sentinel.pipeline.cases import CaseBook


class Inspecting(Storm):
    """Its evidence is the context that it receives."""

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        occurrences = {name: symptom.occurrences for name, symptom in context.symptoms.items()}
        yield Evidence(0.9, f"{occurrences} {context.metadata.get(RESUMED_STEP_KEY)}")


def test_a_symptom_counts_the_occurrences_of_its_detector():
    driver = CaseBookDriver(CaseBook({"inspecting": Inspecting()}))
    driver.update(opened("wind", Severity.INFO, flaps=2))
    driver.update(opened("rain"), opened("wind", episode=2))

    assert "'wind': 4" in driver.current_notification().diagnosis.evidence[0].text


def test_a_symptom_that_was_over_before_the_case_began_is_no_evidence():
    """A further slow epoch is dated by itself, not by the one before it."""
    driver = CaseBookDriver(CaseBook({"inspecting": Inspecting()}))
    over = {"state": IncidentState.RESOLVED, "resolved_step": 60, "onset_range": (10, 20)}
    driver.update(opened("wind", Severity.INFO, onset=20, **over))
    driver.update(opened("dark", Severity.INFO, onset=30, **over | {"resolved_step": 85}))
    driver.update(opened("rain", onset=90, onset_range=(80, 90)))
    text = driver.current_notification().diagnosis.evidence[0].text

    assert "dark" in text
    assert "wind" not in text


@pytest.mark.parametrize(
    ("signal", "usual", "since"),
    [("loss", 1.0, 2.0), ("reward", 0.5, 0.1), ("loss", 1.0, 0.9), ("reward", 0.5, 0.6)],
)
def test_a_single_event_is_a_symptom_hundreds_of_steps_later_if_the_run_never_recovered(
    signal, usual, since
):
    driver = CaseBookDriver(CaseBook({"inspecting": Inspecting()}))
    driver.update(values={signal: usual}, steps=50)
    driver.update(opened("wind", Severity.INFO, onset=150), values={signal: usual})
    over = opened("wind", Severity.INFO, onset=150, resolved_step=170).incident
    driver.update(replace(over, state=IncidentState.RESOLVED), values={signal: since})
    driver.update(values={signal: since}, steps=500)
    driver.update(opened("rain", onset=650, onset_range=(640, 650)))

    is_worse = since > usual if signal == "loss" else since < usual
    assert ("wind" in driver.current_notification().diagnosis.evidence[0].text) == is_worse


def test_the_metadata_hold_the_step_at_which_a_run_resumed():
    driver = CaseBookDriver(CaseBook({"inspecting": Inspecting()}))
    driver.update(event=Event.START)
    driver.update(opened("wind"))
    assert "None" in driver.current_notification().diagnosis.evidence[0].text

    driver.update(event=Event.START)
    driver.update()
    driver.update(opened("rain"))

    assert "102" in driver.current_notification().diagnosis.evidence[0].text


def test_the_last_good_checkpoint_is_before_all_evidence():
    class Late(Storm):
        explains = frozenset({"wind"})

        def evidence(self, context: CaseContext) -> Iterable[Evidence]:
            yield Evidence(0.9, "It was dark.", context.symptoms["dark"].onset_step)

    driver = CaseBookDriver(CaseBook({"late": Late()}))
    driver.update(opened("dark", Severity.INFO, onset=60, last_good_step=50))
    driver.update(opened("wind", onset=90, last_good_step=80))

    assert driver.current_notification().diagnosis.last_good_step == 50


def test_an_earlier_symptom_that_is_no_evidence_does_not_change_the_checkpoint():
    class Wind(Storm):
        def evidence(self, context: CaseContext) -> Iterable[Evidence]:
            yield Evidence(0.9, "It blows.", context.symptoms["wind"].onset_step)

    driver = CaseBookDriver(CaseBook({"wind": Wind()}))
    driver.update(opened("dark", Severity.INFO, onset=1))
    driver.update(opened("wind", onset=90, last_good_step=80))

    assert driver.current_notification().diagnosis.last_good_step == 80


def test_an_estimate_never_moves_the_checkpoint_behind_other_evidence():
    class Both(Storm):
        explains = frozenset({"wind", "dark"})

        def evidence(self, context: CaseContext) -> Iterable[Evidence]:
            for name, symptom in context.symptoms.items():
                yield Evidence(0.5, name, symptom.onset_step, symptom.incident)

    driver = CaseBookDriver(CaseBook({"both": Both()}))
    driver.update(opened("wind", onset=80, last_good_step=70))
    driver.update(opened("dark", onset=90, last_good_step=85))
    driver.set_onset("wind", Onset(98, 96, 99, 95))
    case = driver.current_notification()

    assert (case.diagnosis.onset_step, case.diagnosis.last_good_step) == (90, 85)


class Ranges(Storm):
    """Its evidence is the onset range of a symptom."""

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        wind = context.symptoms["wind"]
        yield Evidence(0.9, f"{wind.earliest_onset} to {wind.latest_onset}.")


def test_the_onset_of_a_symptom_is_the_one_that_was_estimated():
    driver = CaseBookDriver(CaseBook({"ranges": Ranges()}))
    driver.update(opened("wind", onset=120))
    driver.set_onset("wind", Onset(105, 103, 106, 80))
    (notification,) = driver.book.current_notifications()

    assert notification.diagnosis.evidence[0].text == "103 to 106."


def test_without_an_estimate_the_onset_is_some_lines_before_to_the_opening():
    driver = CaseBookDriver(CaseBook({"ranges": Ranges()}))
    driver.update(opened("wind", onset=90, opened_step=100))

    assert driver.current_notification().diagnosis.evidence[0].text == "82 to 100."


def test_the_range_that_a_detector_reports_is_used():
    driver = CaseBookDriver(CaseBook({"ranges": Ranges()}))
    driver.update(opened("wind", onset=90, onset_range=(88, 91)))

    assert driver.current_notification().diagnosis.evidence[0].text == "88 to 91."


def test_symptoms_of_other_cases_are_known():
    class Other(Storm):
        explains = frozenset({"wind"})

        def evidence(self, context: CaseContext) -> Iterable[Evidence]:
            yield Evidence(0.9, f"{sorted(context.other_symptoms)}.")

    driver = CaseBookDriver(CaseBook({"other": Other()}))
    driver.update(opened("fire"))
    driver.update(opened("wind"))
    *_, case = driver.book.current_notifications()

    assert case.diagnosis.evidence[0].text == "['fire']."
