"""Headlines of notifications."""

import pytest
from support.notifications import make_notification, with_diagnosis

from sentinel.model.notification import NotificationReason


@pytest.mark.parametrize(
    ("notification", "headline"),
    [
        (make_notification(), "KL is 2 nats."),
        (with_diagnosis(), "Policy collapse (likely, 83 %): KL is 2 nats."),
        (make_notification(NotificationReason.RESOLVED), "Resolved at step 120: KL is 2 nats."),
    ],
)
def test_the_headline_is_a_sentence_with_cause_and_resolution(notification, headline):
    assert notification.headline == headline


def test_the_headline_of_an_added_incident_is_about_that_incident():
    notification = with_diagnosis(make_notification(NotificationReason.INCIDENT_ADDED))

    assert notification.headline == "Policy collapse (likely, 83 %): It fell."
