"""All agents of a job look for their head at the same address, and at that of no other job."""

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
)
from sentinel.cluster.protocol import slot_keys
from sentinel.transport.rendezvous import Rendezvous

JOB = Rendezvous("gpu-a", "29500", "7/29500", 3)


def test_all_nodes_of_a_job_have_the_same_endpoint():
    assert head_endpoint(JOB) == head_endpoint(Rendezvous("gpu-a", "29999", "7/29500", 0))


@given(st.text())
def test_ports_are_consecutive_and_within_the_range(job):
    ports = head_endpoint(Rendezvous("gpu-a", "1", job)).ports

    assert ports == tuple(range(ports[0], ports[0] + PORT_TRIES))
    assert ports[0] >= FIRST_PORT
    assert ports[-1] < FIRST_PORT + PORT_COUNT


def test_jobs_on_one_machine_rarely_share_their_first_port():
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
def test_the_setting_overrides_the_launcher(head, host, ports):
    assert head_endpoint(JOB, head) == HeadEndpoint(host, ports or head_endpoint(JOB).ports)


@pytest.mark.parametrize("head", ["gpu-b:x", "gpu-b:0", "gpu-b:65536", "gpu-b:-1", "[::1]:x"])
def test_an_invalid_port_is_refused_with_a_remedy(head):
    with pytest.raises(ValueError, match=r"\[cluster\] head.*1 to 65535") as caught:
        head_endpoint(JOB, head)
    assert head in str(caught.value)


def test_an_unknown_rendezvous_has_no_host():
    assert head_endpoint(Rendezvous()).host == ""


@given(st.sampled_from(["gpu-a", "10.0.0.1", "fe80::1", "::"]), st.integers(1, 65535))
def test_a_formatted_address_is_parsed_back(host, port):
    assert head_endpoint(JOB, format_address(host, port)) == HeadEndpoint(host, (port,))


def test_a_job_id_with_lone_surrogates_has_ports():
    assert head_endpoint(Rendezvous("gpu-a", "1", "job-\udcff")).ports


def test_keys_of_different_slots_are_different():
    keys = [key for slot in range(200) for key in slot_keys(slot)]

    assert len({*keys}) == len(keys)
