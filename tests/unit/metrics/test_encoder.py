"""The text of a scrape is that of prometheus_client, and made without its samples."""

import random
from math import inf, nan

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from support.expositions import make_exposition
from support.results import DIAGNOSIS, case_result, make_result, make_spread, step_result

from sentinel.metrics import encoder
from sentinel.metrics.encoder import MetricsEncoder
from sentinel.metrics.family import Family
from sentinel.signals.catalogue import SIGNALS

TEXT = "text/plain;version=0.0.4"
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
ACCEPTED = [
    "",
    TEXT,
    OPENMETRICS,
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "text/plain;version=1.0.0;escaping=dots",
    "text/plain;version=1.0.0;escaping=values",
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8",
    "application/openmetrics-text;version=1.0.0;escaping=values",
    "application/openmetrics-text;version=2.0.0;escaping=underscores",
    "application/openmetrics-text,text/plain;version=1.0.0;q=0.5,*/*;q=0.1",
    "image/png",
]
NUMBERS = [0, 1, True, False, -0.0, 0.1, -2.5, nan, inf, -inf, 999_999.5, 1e6, 1_234_567, -1e7]
NUMBERS += [1e15, 1e16, 123456789.125, 1e22, 1.7e308, 5e-324, 1e-7, -1e300, 2**60]
COUNTS = [0, 1.0, 0.5, 12345678, 1e16, inf]
TEXTS = ["", "plain", 'a "quoted" one', "back\\slash", "two\nlines", "é☃😀", "a,b={}", "\\n"]


class Families:
    """A collector of the families that it is given."""

    def __init__(self, *families):
        self.families = list(families)

    def collect(self):
        return self.families


def registry_of(*families):
    registry = CollectorRegistry()
    registry.register(Families(*families))
    return registry


def library_text(accept, registry):
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def odd_families(seed=0):
    rng = random.Random(seed)
    number = lambda: rng.choice([*NUMBERS, rng.uniform(-1e8, 1e8), rng.random()])  # noqa: E731
    text = lambda: rng.choice(TEXTS)  # noqa: E731
    yield Family("sentinel_build", "Version.", "info", None, ("version",), {("1.0",): 1.0})
    yield Family("sentinel_step", 'Of a "run"\\\n', "gauge", text(), (), {(): number()})
    yield Family("sentinel_none", "No series.", "counter", text(), ("a",), {})
    for at, typ in enumerate(["gauge", "counter", "info"] * 4):
        labels = tuple(rng.sample(["rank", "case", "name", "zone"], rng.randint(1, 4)))
        of_type = {"gauge": number, "counter": lambda: rng.choice(COUNTS), "info": lambda: 1.0}
        values = {tuple(text() for _ in labels): of_type[typ]() for _ in range(6)}
        if len(labels) == 1:
            values = {key[0]: value for key, value in values.items()}
        yield Family(f"sentinel_{typ}_{at}", text(), typ, text(), labels, values)


def whole_run():
    """Every signal, other keys, ranks and an open case."""
    shown = make_exposition(
        *(step_result(rank=rank, step_time=0.5) for rank in range(12)), per_rank_limit=8
    )
    values = dict.fromkeys(SIGNALS, 1.5) | {'odd "key"\\': nan, "other": 3e9}
    shown.update(make_result(values=values, spread={n: make_spread(1.0, 2.0) for n in SIGNALS}))
    shown.update(case_result(DIAGNOSIS))
    return shown


@pytest.mark.parametrize("accept", ACCEPTED)
def test_the_text_is_that_of_prometheus_client(accept):
    for seed in range(8):
        registry = registry_of(*odd_families(seed))

        assert MetricsEncoder().encode(accept, registry) == library_text(accept, registry)


@pytest.mark.parametrize("accept", ACCEPTED)
def test_a_second_scrape_shows_new_values_runs_and_labels(accept):
    """The cached text of a series is not that of another series or run."""
    encoding = MetricsEncoder()
    for seed in range(8):
        registry = registry_of(*odd_families(seed))

        assert encoding.encode(accept, registry) == library_text(accept, registry)


@pytest.mark.parametrize("accept", [TEXT, OPENMETRICS])
def test_the_metrics_of_a_run_are_those_of_prometheus_client(accept):
    shown, encoding = whole_run(), MetricsEncoder()
    for _ in range(2):
        assert encoding.encode(accept, shown.registry) == library_text(accept, shown.registry)


def test_the_parsers_of_prometheus_client_read_every_value_back():
    families = list(odd_families())
    expected = [
        (sample.name, sample.labels, str(float(sample.value)))
        for family in families
        for sample in family.samples
    ]
    for accept, read in ((TEXT, parse), (OPENMETRICS, parse_openmetrics)):
        page, _ = MetricsEncoder().encode(accept, registry_of(*families))
        samples = [s for family in read(page.decode()) for s in family.samples]

        assert [(s.name, s.labels, str(float(s.value))) for s in samples] == expected


def test_a_malformed_accept_header_gets_the_plain_format():
    registry = registry_of(*odd_families())

    page, content_type = MetricsEncoder().encode("text/plain;version=1.x", registry)

    assert (page, content_type) == library_text("", registry)


def test_families_of_other_collectors_are_encoded_too():
    other = GaugeMetricFamily("other", "Of a library.", value=2.0)

    page, _ = MetricsEncoder().encode("", registry_of(*odd_families(), other))

    assert b"\nother 2.0\n" in page


def test_a_scrape_makes_no_samples_and_no_text_of_known_series(monkeypatch):
    """They are most of the cost of a scrape."""
    shown, encoding = whole_run(), MetricsEncoder()
    pages = [encoding.encode(accept, shown.registry) for accept in (TEXT, OPENMETRICS)]

    def fail(*_):
        raise AssertionError("made at each scrape")

    monkeypatch.setattr(Family, "samples", property(fail))
    monkeypatch.setattr(encoder, "_series_text", fail)
    monkeypatch.setattr(encoder, "_family_text", fail)

    assert pages == [encoding.encode(accept, shown.registry) for accept in (TEXT, OPENMETRICS)]


def test_the_text_of_series_that_end_is_dropped():
    encoding = MetricsEncoder()
    for first in range(0, 10_000, 100):
        values = {str(first + at): 1.0 for at in range(100)}
        registry = registry_of(Family("sentinel_x", "X.", "gauge", "run", ("rank",), values))
        encoding.encode(TEXT, registry)

    assert len(encoding._texts["sentinel_x"].series) < 300
