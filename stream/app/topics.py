"""The names of a pipeline's topics, and whether its model is shared by default."""

from typing import Literal

from stream.app.settings import AUTO, Settings
from stream.wire.topics import Topics


def topics_of(settings: Settings) -> Topics:
    """The topics of the pipeline."""
    return Topics.with_prefix(settings.topic_prefix)


def model_of(settings: Settings, partitions: int) -> Literal["own", "shared"]:
    """The model of a new pipeline: by default a shared one if there are several partitions."""
    if settings.model != AUTO:
        return settings.model
    return "shared" if partitions > 1 and settings.play == "own" else "own"
