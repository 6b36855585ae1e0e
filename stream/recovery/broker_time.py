"""What a learner knows of the broker's time, how old that may be, and whether its decisions are dated by it in time.

A decision is dated by the broker's time in the learner's last acknowledgement, or later. That must lie close before the
append time of its prediction, else its window has passed in part, or all of it, before anybody can answer:

    acknowledged        asked                   decided   appended
    ────┬─── paused, or nothing to do ───┬──────────┬─────────┬────
        └ known: may be old              └ known ───┴─────────┘ at most tolerance_ms, looked at before the commit
"""

from collections.abc import Callable

TOLERANCE_MS_MIN = 1
"""The grain of the broker's time: two acknowledgements of one millisecond cannot be told apart."""


def tolerance_ms(idle_ms: int, window_ms: int) -> int:
    """How long before the append time of its prediction a decision may be dated.

    Args:
        idle_ms: how often the broker is asked for its time while decisions wait.
        window_ms: how long a decision waits for its feedback.
    """
    return max(TOLERANCE_MS_MIN, min(idle_ms, window_ms // 10))


class BrokerTime:
    """The broker's time as a learner's own records tell it. No clock of this host tells it, only how old it may be."""

    def __init__(self, host_ms: Callable[[], int], tolerance_ms: int | None) -> None:
        """Know nothing yet.

        Args:
            host_ms: a clock of this host, for intervals; it must run on while the machine is suspended.
            tolerance_ms: see above; None: it does not matter when predictions are appended.
        """
        self.now_ms = 0  # in the last acknowledgement; the broker's time is this or later
        self.is_known = False  # whether that was after the last recovery: before, it may be any time ago
        self.heard_at_ms = host_ms()  # by the host's clock, when the last commit was acknowledged
        self.outdated = 0  # decisions that were dated too long before, and stand
        self._host_ms = host_ms
        self._tolerance_ms = tolerance_ms
        self._sent_at_ms = self.heard_at_ms  # before the last record of that commit was sent
        self._sending_at_ms = self.heard_at_ms  # before that of the commit that is being made
        self._accepted: set[int] = set()  # partitions whose decisions stand although they are outdated

    def sends(self) -> None:
        """Take note that another record follows: the time that its acknowledgement brings is of after this."""
        self._sending_at_ms = self._host_ms()

    def hears(self, append_ms: int) -> None:
        """Take in the time that a commit has brought: the latest append time among its records."""
        self.now_ms = append_ms
        self.is_known = True
        self.heard_at_ms = self._host_ms()
        self._sent_at_ms = self._sending_at_ms

    def forget(self) -> None:
        """A task was recovered, which may have taken any time."""
        self.is_known = False

    @property
    def silent_ms(self) -> int:
        """How long ago, by the host's clock, the last commit was acknowledged."""
        return self._host_ms() - self.heard_at_ms

    @property
    def has_paused(self) -> bool:
        """Whether too much time for the next decisions has passed since the last commit was acknowledged."""
        return self._tolerance_ms is not None and self.silent_ms > self._tolerance_ms

    def may_be_old(self) -> bool:
        """Whether a decision that is dated by what is known may be dated too long before its prediction."""
        if not self.is_known:
            return True
        return self._tolerance_ms is not None and self._host_ms() - self._sent_at_ms > self._tolerance_ms

    def accepts(self, partition: int, decisions: int, age_ms: int) -> bool:
        """Whether decisions may stand that are dated so long before the append time of their predictions.

        Those of a partition are refused once. When they are too old again it is not a pause, but a broker that is
        slow: they stand and are counted, as are those that follow, until some are in time.
        """
        if self._tolerance_ms is None or age_ms <= self._tolerance_ms:
            self._accepted.discard(partition)
            return True
        if partition not in self._accepted:
            self._accepted.add(partition)
            return False
        self.outdated += decisions
        return True


PORTION_RECORDS = 250
"""What a step takes at first: a few milliseconds of work for most learners."""


class Portion:
    """How many records of a task a step takes: so few that its predictions are written soon after they are dated.

    A backlog is taken in larger and larger steps, up to the most that is allowed; a learner that is slow decides fewer
    records at a time. What the broker takes does not count: smaller steps would only make it slower.
    """

    def __init__(self, records_max: int, tolerance_ms: int | None) -> None:
        """Begin with few; with no tolerance always take the most that is allowed.

        Args:
            records_max: of one task in one step.
            tolerance_ms: a step works for half of it, at most.
        """
        self.records = records_max if tolerance_ms is None else min(records_max, PORTION_RECORDS)
        self._records_max = records_max
        self._tolerance_ms = tolerance_ms

    def took(self, records: int, ms: int) -> None:
        """Take in how long it was until so many records of one task were decided and handed over to be sent."""
        if self._tolerance_ms is None:
            return
        if ms > self._tolerance_ms / 2:
            self.records = max(1, min(records, self.records) // 2)
        elif records >= self.records and ms <= self._tolerance_ms / 8:
            self.records = min(self._records_max, 2 * self.records)
