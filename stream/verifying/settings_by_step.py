"""Which settings were in force when: those that opened a journal, and each change from its step on."""

from typing import NamedTuple

from stream.joining.task_settings import TaskSettings
from stream.recovery.journal import SettingsChange
from stream.recovery.resolve import SettingsDifferError, resolve
from stream.recovery.stored_settings import by_name
from stream.wire.records import Record


class _Span(NamedTuple):
    """Steps under the same settings, up to the next span."""

    first_step: int
    feedback_offset: int  # of the first feedback that they applied, or that comes next
    begun_ms: int  # the feedback watermark before the first one
    settings: TaskSettings


class SettingsByStep:
    """The settings of a task at each of its steps."""

    def __init__(self, opening: TaskSettings) -> None:
        self._spans = [_Span(1, 0, 0, opening)]

    @property
    def latest(self) -> TaskSettings:
        """Those of the last step."""
        return self._spans[-1].settings

    @property
    def settings_from(self) -> int:
        """The first step under the latest settings, as the journal's steps name it: 0 for the opening's."""
        return self._spans[-1].first_step if len(self._spans) > 1 else 0

    def change(self, change: SettingsChange, feedback_offset: int, feedback_end_ms: int) -> str:
        """Take in a change of the journal; what is wrong with it, or nothing.

        Args:
            change: the change.
            feedback_offset: where the steps before it have ended in the feedback.
            feedback_end_ms: the latest time at which these had applied all feedback.
        """
        self._spans.append(_Span(change.number, feedback_offset, feedback_end_ms, change.settings))
        try:
            resolve(by_name(self._spans[-2].settings), change.settings, change=True, place="the journal before")
        except SettingsDifferError as error:
            return str(error)
        return ""

    def heard(self, feedback: Record) -> None:
        """Take in the time of the next feedback, before it is asked what had passed at that time."""
        for number, span in enumerate(self._spans):
            if feedback.offset < span.feedback_offset and feedback.append_ms > span.begun_ms:
                self._spans[number] = span._replace(begun_ms=feedback.append_ms)

    def at(self, step: int) -> TaskSettings:
        """Those of a step; of one that came before all others, the opening's."""
        return next(
            (span.settings for span in reversed(self._spans) if span.first_step <= step), self._spans[0].settings
        )

    def retain_passed(self, since_ms: int, step: int, now_ms: int) -> bool:
        """Whether what was settled at some time was forgotten when a step applied a record of another time."""
        return any(reached_ms > since_ms + one.join.retain_ms for one, reached_ms in self._up_to(step, now_ms))

    def orphan_passed(self, since_ms: int, step: int, now_ms: int) -> bool:
        """Whether feedback that waited since some time was dropped when a step applied a record of another time."""
        return any(reached_ms > since_ms + one.join.orphan_ms for one, reached_ms in self._up_to(step, now_ms))

    @property
    def retained_max(self) -> int:
        """The least of the limits that there were."""
        return min(span.settings.join.retained_max for span in self._spans)

    def retained_limits(self, step: int) -> list[tuple[int, int | None]]:
        """The limits up to a step, each with the first step under the next settings; None: there are none."""
        following = [*(span.first_step for span in self._spans[1:]), None]
        limits = [settings.join.retained_max for settings, _ in self._up_to(step, 0)]
        return list(zip(limits, following, strict=False))

    def _up_to(self, step: int, now_ms: int) -> list[tuple[TaskSettings, int]]:
        """The settings up to a step, and to which time each was in force."""
        spans = [span for span in self._spans if span.first_step <= step or span is self._spans[0]]
        reached = [span.begun_ms for span in spans[1:]] + [now_ms]
        return [(span.settings, reached_ms) for span, reached_ms in zip(spans, reached, strict=True)]
