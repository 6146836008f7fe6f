"""Places: all agents of a job look for their head in the same place, and for no other's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.cluster.endpoints import (
    FIRST_PORT,
    PORT_COUNT,
    PORT_TRIES,
    HeadEndpoint,
    format_address,
    head_endpoint,
    slot_keys,
)
from sentinel.transport.rendezvous import Rendezvous

JOB = Rendezvous("gpu-a", "29500", "7/29500", 3)


def test_all_nodes_of_a_job_find_the_same_place_whatever_else_they_know():
    assert head_endpoint(JOB) == head_endpoint(Rendezvous("gpu-a", "29999", "7/29500", 0))


@given(st.text())
def test_ports_are_some_in_a_row_of_those_that_nobody_is_given(job):
    ports = head_endpoint(Rendezvous("gpu-a", "1", job)).ports

    assert ports == tuple(range(ports[0], ports[0] + PORT_TRIES))
    assert ports[0] >= FIRST_PORT
    assert ports[-1] < FIRST_PORT + PORT_COUNT


def test_jobs_on_one_machine_mostly_begin_at_ports_of_their_own():
    first = {head_endpoint(Rendezvous("gpu-a", "1", str(job))).ports[0] for job in range(100)}

    assert len(first) > 90


@pytest.mark.parametrize(
    ("head", "host", "ports"),
    [
        ("gpu-b", "gpu-b", None),
        ("gpu-b:7000", "gpu-b", (7000,)),
        ("gpu-b:", "gpu-b", None),
        (":7000", "gpu-a", (7000,)),
        ("10.0.0.1:65535", "10.0.0.1", (65535,)),
        ("fe80::1", "fe80::1", None),
        ("[fe80::1]", "fe80::1", None),
        ("[fe80::1]:7000", "fe80::1", (7000,)),
        ("fe80::1%eth0", "fe80::1%eth0", None),
    ],
)
def test_what_a_person_sets_comes_before_what_the_launcher_told(head, host, ports):
    assert head_endpoint(JOB, head) == HeadEndpoint(host, ports or head_endpoint(JOB).ports)


@pytest.mark.parametrize("head", ["gpu-b:x", "gpu-b:0", "gpu-b:65536", "gpu-b:-1", "[::1]:x"])
def test_a_port_that_is_none_is_refused_by_name_with_the_remedy(head):
    with pytest.raises(ValueError, match=r"\[cluster\] head.*1 to 65535") as caught:
        head_endpoint(JOB, head)
    assert head in str(caught.value)


def test_without_any_word_there_is_no_host():
    assert head_endpoint(Rendezvous()).host == ""


@given(st.sampled_from(["gpu-a", "10.0.0.1", "fe80::1", "::"]), st.integers(1, 65535))
def test_an_address_that_was_spelled_is_read_as_it_was_meant(host, port):
    assert head_endpoint(JOB, format_address(host, port)) == HeadEndpoint(host, (port,))


def test_a_job_whose_name_is_no_text_has_a_place_all_the_same():
    assert head_endpoint(Rendezvous("gpu-a", "1", "job-\udcff")).ports


def test_no_two_nodes_leave_anything_in_the_same_place():
    keys = [key for slot in range(200) for key in slot_keys(slot)]

    assert len({*keys}) == len(keys)
