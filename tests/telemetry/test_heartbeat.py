"""A program's readiness and liveness, and its HTTP server's responses."""

from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream.telemetry import metrics
from stream.telemetry.heartbeat import HANGS_MS, RENEWAL_MS, SLOW_MS, Heartbeat, Verdict
from stream.telemetry.metrics import HistogramCounts, Sample
from stream.telemetry.serving import HealthServer, Page, Site


class Host:
    """A program's heartbeat. The test advances the heartbeat's clock."""

    def __init__(self) -> None:
        self.ms = 0
        self.heartbeat = Heartbeat("learner", "1.2.3", lambda: self.ms)


def no_samples() -> tuple[Sample, ...]:
    return ()


def test_program_is_ready_while_its_main_loop_reports_iterations() -> None:
    host = Host()
    reported = [host.heartbeat.ready()]
    host.heartbeat.set_unready("waiting for Kafka")
    reported.append(host.heartbeat.ready())
    host.heartbeat.show("partitions in recovery: 0", no_samples)
    reported.append(host.heartbeat.ready())
    host.heartbeat.show("", no_samples)
    host.ms += SLOW_MS
    reported.append(host.heartbeat.ready())
    host.ms += 1
    reported.append(host.heartbeat.ready())
    assert reported == [
        Verdict(ok=False, why="starting"),
        Verdict(ok=False, why="waiting for Kafka"),
        Verdict(ok=False, why="partitions in recovery: 0"),
        Verdict(ok=True, why="running"),
        Verdict(ok=False, why="no iteration of the main loop for 10 s"),
    ]


def test_program_is_not_alive_if_its_started_main_loop_sends_no_heartbeats() -> None:
    host = Host()
    host.ms += 10 * HANGS_MS  # for example, during compilation
    alive = [host.heartbeat.alive().ok]
    host.heartbeat.show("", no_samples)
    host.ms += HANGS_MS
    host.heartbeat.beat()  # for example, during a recovery
    host.ms += HANGS_MS
    alive.append(host.heartbeat.alive().ok)
    host.ms += 1
    alive.append(host.heartbeat.alive().ok)
    assert alive == [True, True, False]


def test_metric_samples_are_recomputed_if_they_are_old_or_the_state_changes() -> None:
    host, made = Host(), 0

    def samples() -> list[Sample]:
        nonlocal made
        made += 1
        return [metrics.FEEDBACK_SENT.at(made)]

    counts = []
    for ms, unready in (
        (0, ""),
        (RENEWAL_MS - 1, ""),
        (RENEWAL_MS, ""),
        (RENEWAL_MS, "no partition"),
        (RENEWAL_MS, ""),
    ):
        host.ms = ms
        host.heartbeat.show(unready, samples)
        counts.append(made)
    assert counts == [1, 1, 2, 3, 4]
    assert metrics.FEEDBACK_SENT.at(4) in tuple(host.heartbeat.samples())


@pytest.fixture
def served() -> Iterator[tuple[Host, HTTPConnection]]:
    host = Host()
    server = HealthServer(host.heartbeat, "127.0.0.1", 0)
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    yield host, connection
    connection.close()
    server.close()


def asked(connection: HTTPConnection, path: str) -> tuple[int, str]:
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_health_check_returns_status_and_reason(served: tuple[Host, HTTPConnection]) -> None:
    host, connection = served
    answers = [asked(connection, "/readyz"), asked(connection, "/healthz")]
    host.heartbeat.show("", no_samples)
    answers += [asked(connection, "/readyz")]
    host.ms += HANGS_MS + 1
    answers += [asked(connection, "/healthz?verbose"), asked(connection, "/")]
    assert answers == [
        (503, "starting\n"),
        (200, "starting\n"),
        (200, "running\n"),
        (503, "no iteration of the main loop for 60 s\n"),
        (404, "unknown path; available: /metrics, /healthz, /readyz\n"),
    ]


def test_metrics_response_has_the_prometheus_format(served: tuple[Host, HTTPConnection]) -> None:
    host, connection = served
    counts = HistogramCounts((1, 0, 2, *[0] * 10, 1), 400.5)
    host.heartbeat.show(
        "", lambda: [metrics.SETTLED.at(5, "0", "matched"), metrics.DECISION_LATENCY.at(counts),
                     metrics.SETTLED.at(6, "1", "expired")],
    )  # fmt: skip
    host.ms = 250
    status, text = asked(connection, "/metrics")
    assert status == 200
    found = {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    own = {key: value for key, value in found.items() if key[0].startswith("onebit_")}
    buckets = {key[1]: value for key, value in own.items() if key[0] == "onebit_decision_latency_seconds_bucket"}
    assert {key: value for key, value in own.items() if "latency" not in key[0]} == {
        ("onebit_build_info", "learner", "1.2.3"): 1.0,
        ("onebit_ready",): 1.0,
        ("onebit_loop_age_seconds",): 0.25,
        ("onebit_settled_total", "matched", "0"): 5.0,
        ("onebit_settled_total", "expired", "1"): 6.0,
    }
    assert (buckets["0.005"], buckets["0.01"], buckets["0.025"], buckets["300.0"], buckets["+Inf"]) == (1, 1, 3, 3, 4)
    assert own["onebit_decision_latency_seconds_count",] == 4
    assert own["onebit_decision_latency_seconds_sum",] == 400.5
    assert "process_resident_memory_bytes" in text


def test_server_streams_events_and_serves_self_contained_pages() -> None:
    reported = iter((b'{"n": 1}', b'{"n": 2}'))
    site = Site({"/": Page("text/html", b"<!doctype html>")}, lambda: next(reported))
    server = HealthServer(Host().heartbeat, "127.0.0.1", 0, site)
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/")
    response = connection.getresponse()
    assert (response.status, response.read()) == (200, b"<!doctype html>")
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none';")
    connection.request("GET", "/events")
    events = connection.getresponse()
    lines = [events.readline() for _ in range(2)]
    server.close()
    assert (events.headers["Content-Type"], lines) == ("text/event-stream; charset=utf-8", [b'data: {"n": 1}\n', b"\n"])
    connection.close()
