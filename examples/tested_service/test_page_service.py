"""Tests for the service, using Onebit's pytest fixtures. Run them with `pytest examples/tested_service`."""

from collections.abc import Callable

from page_service import PAGES, PageService

from onebit.testing.embedded import EmbeddedPipeline
from onebit.testing.on_kafka import KafkaPipeline

SIZES = {"n_classes": len(PAGES), "n_features": len(PAGES) + 1, "learner": "late-ucb"}


def test_service_learns_which_page_a_visitor_wants(onebit_embedded: Callable[..., EmbeddedPipeline]) -> None:
    pipeline = onebit_embedded(**SIZES, window="30s")
    service, right = PageService(pipeline.send), []
    for number in range(60):
        visit, wanted = f"visit-{number}", PAGES[number % 3]
        service.visitor_arrives(visit, [float(page == wanted) for page in PAGES])
        service.predicted(pipeline.prediction(visit))
        pipeline.advance("10s")  # the duration of the visit, in virtual time
        right.append(service.shown[visit] == wanted)
        service.visitor_leaves(visit, content=right[-1])
    assert sum(right[30:]) >= 27


def test_visitor_who_never_leaves_expires(onebit_embedded: Callable[..., EmbeddedPipeline]) -> None:
    pipeline = onebit_embedded(**SIZES, window="30s")
    PageService(pipeline.send).visitor_arrives("visit-1", [1.0, 0.0, 0.0])
    pipeline.advance("31s")
    assert pipeline.example("visit-1")["outcome"] == "expired"


def test_service_works_on_a_real_kafka(onebit_pipeline: Callable[..., KafkaPipeline]) -> None:
    pipeline = onebit_pipeline(**SIZES)
    service = PageService(pipeline.send)
    service.visitor_arrives("visit-1", [1.0, 0.0, 0.0])
    service.predicted(pipeline.prediction("visit-1"))
    service.visitor_leaves("visit-1", content=True)
    assert pipeline.example("visit-1")["outcome"] == "matched"
