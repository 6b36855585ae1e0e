"""Which settings were in force when: those that opened a journal, and each change from its step on."""

from collections.abc import Callable
from typing import NamedTuple

from stream.journal.resolve import SettingsDifferError, resolve
from stream.journal.stored_settings import stored_settings
from stream.task.settings import TaskSettings


class Span(NamedTuple):
    """Steps under the same settings, up to the next span."""

    first_step: int
    settings: TaskSettings


class SettingsByStep:
    """The settings of a task at each of its steps."""

    def __init__(self, opening: TaskSettings, stream_ms: Callable[[int], int]) -> None:
        """Know those of the opening.

        Args:
            opening: the settings.
            stream_ms: stream time after a step; asked only when the inputs were read.
        """
        self.spans = [Span(1, opening)]
        self._stream_ms = stream_ms

    @property
    def latest(self) -> TaskSettings:
        """Those of the last step."""
        return self.spans[-1].settings

    @property
    def settings_from(self) -> int:
        """The first step under the latest settings."""
        return self.spans[-1].first_step

    def change(self, step: int, settings: TaskSettings) -> str:
        """Add the settings from a step on, and return what is wrong with the change; empty: nothing."""
        before = self.latest
        self.spans.append(Span(step, settings))
        try:
            resolve(stored_settings(before), settings, change=True, place="the journal before")
        except SettingsDifferError as error:
            return str(error)
        return ""

    def at(self, step: int) -> TaskSettings:
        """Those of a step; of one that came before all others, the opening's."""
        return next((span.settings for span in reversed(self.spans) if span.first_step <= step), self.spans[0].settings)

    def retain_passed(self, since_ms: int, step: int, now_ms: int) -> bool:
        """Whether what was settled at some stream time was forgotten at another one, within a step."""
        return any(reached_ms > since_ms + one.join.retain_ms for one, reached_ms in self._up_to(step, now_ms))

    def orphan_passed(self, since_ms: int, step: int, now_ms: int) -> bool:
        """Whether feedback that waited since some stream time was dropped at another one, within a step."""
        return any(reached_ms > since_ms + one.join.orphan_ms for one, reached_ms in self._up_to(step, now_ms))

    @property
    def retained_max(self) -> int:
        """The least of the limits that there were."""
        return min(span.settings.join.retained_max for span in self.spans)

    def retained_limits(self, step: int) -> list[tuple[int, int | None]]:
        """The limits up to a step, each with the first step under the next settings; None: there are none."""
        following = [*(span.first_step for span in self.spans[1:]), None]
        limits = [settings.join.retained_max for settings, _ in self._up_to(step, 0)]
        return list(zip(limits, following, strict=False))

    def _up_to(self, step: int, now_ms: int) -> list[tuple[TaskSettings, int]]:
        """The settings up to a step, and up to which stream time each was in force."""
        spans = [span for span in self.spans if span.first_step <= step or span is self.spans[0]]
        reached = [self._stream_ms(span.first_step - 1) for span in spans[1:]] + [now_ms]
        return [(span.settings, reached_ms) for span, reached_ms in zip(spans, reached, strict=True)]
