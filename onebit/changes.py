"""Changes of a running pipeline's settings: requests, and what the tasks did with them."""

import getpass
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from consumers.live_estimates import TopicReader, challenger_estimator
from stream.errors import ExitCode, OnebitError
from stream.kafka.port import Broker
from stream.kafka.reading import offset_of_number, read_partition
from stream.learners import ParameterError
from stream.parsing import close_matches
from stream.programs.connection import Connected
from stream.programs.keep import check_keep
from stream.programs.process import announce, every
from stream.programs.task_settings import challengers_of, holdout_policy, named_features, parameter_of
from stream.recovery.control import read_requests
from stream.recovery.model_files import ModelError, read_model
from stream.recovery.recover import pipeline_settings
from stream.recovery.steps import JournalFollower, JournalStep, decode_step, last_steps
from stream.reporting.live_results import challenger_lines
from stream.settings.definitions import Settings, SettingsError
from stream.settings.task_fields import JoinSettings, shared_values
from stream.task.carry import StartModel, known_models
from stream.task.changes import Changed, ChangeRefusedError, changed, check_value
from stream.task.settings import TaskSettings, learner_of
from stream.task.stored_settings import differences, restored_settings, stored_settings
from stream.wire.codec import HEADERS
from stream.wire.control import REQUEST_BYTES_MAX, Request, encode_model, encode_request, model_digest
from stream.wire.named_features import from_plain
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

READ_INTERVAL_S = 5.0
"""Interval between reads of the topics while waiting for a better challenger."""

POLL_MS = 200
STATUS_INTERVAL_MS = 5_000


class ChangeStoppedError(OnebitError):
    """The command was stopped while it waited."""

    exit_code = ExitCode.INTERRUPTED


def settings_now(connection: Connected) -> Changed:
    """Return a pipeline's settings after all requests, including those that no task has applied yet.

    Raises:
        MovedError: the pipeline was moved to other topics.
        SettingsError: the pipeline has not taken a step.
    """
    broker, topics, partitions = connection
    requests = read_requests(broker, topics)
    requests.check_not_moved(topics)
    stored, control = pipeline_settings(broker, topics, partitions)
    if "seed" not in stored:  # an imported model has only some of the settings
        raise SettingsError(
            f"{topics.journal}: expected a pipeline that has made a decision; found no decisions. Until its "
            "first decision, its settings are the flags of `onebit learn`"
        )
    return requests.after(restored_settings(stored), control)


class StartFile(NamedTuple):
    """A model file with which a challenger starts."""

    path: Path
    content: bytes
    model: StartModel

    @property
    def digest(self) -> str:
        """The digest by which requests name the file."""
        return model_digest(self.content)


MODEL_BYTES_MAX = 100_000_000
"""Limit on the size of a model file. Each program that reads the control topic reads the file again."""


def start_files(texts: Sequence[str], challengers: Collection[str]) -> dict[str, StartFile]:
    """Read the model files with which new challengers start, by the challenger's name.

    Args:
        texts: the values of `--from`: `NAME=FILE`, or `FILE` if there is one challenger.
        challengers: the names of the new challengers.

    Raises:
        SettingsError: a value names no new challenger, or a challenger twice.
        ModelError: a file is not a model.
    """
    files: dict[str, StartFile] = {}
    for text in texts:
        named = max((name for name in challengers if text.startswith(f"{name}=")), key=len, default=None)
        if named is None and len(challengers) != 1:
            expected = " or ".join(f"{name}=FILE" for name in challengers) or "a new challenger; add --challenger"
            raise SettingsError(f"--from {text}: expected {expected}")
        name = next(iter(challengers)) if named is None else named
        if name in files:
            raise SettingsError(f"--from {text}: expected one file for the challenger {name}; got two")
        files[name] = _start_file(Path(text if named is None else text[len(named) + 1 :]))
    return files


def _start_file(path: Path) -> StartFile:
    model = read_model(path).start()
    if (size := path.stat().st_size) > MODEL_BYTES_MAX:
        raise ModelError(
            f"{path}: expected at most {MODEL_BYTES_MAX:,} bytes, because the control topic keeps it; got {size:,}"
        )
    return StartFile(path, path.read_bytes(), model)


def shown_uploads(broker: Broker, topics: Topics, files: Mapping[str, StartFile]) -> list[str]:
    """Describe how many bytes the model files add to the control topic, each in one line."""
    requests = read_requests(broker, topics)
    return [
        f"{name} starts with {file.path}: "
        + (
            f"{topics.control} already contains it"
            if requests.has_model(file.digest)
            else f"adds {len(file.content):,} bytes to {topics.control}, which keeps them"
        )
        for name, file in files.items()
    ]


class DesiredChange(NamedTuple):
    """Changes that a user asks for."""

    settings: Settings
    given: frozenset[str]  # the fields of `settings` to change
    champion: str | None = None
    removed: Collection[str] = ()  # learners to remove
    classes: Sequence[str] = ()  # names of classes to append to a fixed set
    retired_classes: Sequence[str] = ()  # names, or indices as text
    restored_classes: Sequence[str] = ()
    retired_features: Sequence[str] = ()
    restored_features: Sequence[str] = ()
    starts: Mapping[str, StartFile] = {}  # model files with which new challengers start, by name


def with_changes(now: TaskSettings, desired: DesiredChange) -> TaskSettings:
    """Return a pipeline's settings after a user's changes.

    Raises:
        SettingsError: a flag does not fit the pipeline, for example because its classes have no names, or because it
            has actions.
    """
    settings, given = desired.settings, desired.given
    shared = shared_values(settings) | {"n_features": settings.n_features}
    own = {name: value for name, value in shared.items() if name in given}
    join = {field.name: getattr(settings, field.name) for field in fields(JoinSettings) if field.name in given}
    after = replace(now, **own, join=replace(now.join, **join))
    if "holdout_policy" in given:
        after = replace(after, holdout_policy=holdout_policy(settings))
    if "features" in given:
        plain = named_features(settings)
        assert plain is not None
        after = replace(after, features=plain, n_features=from_plain(plain).n_features)
    if "classes_max" in given:
        if not now.open_classes:
            raise SettingsError(
                "--classes-max: expected a pipeline with open classes; append fixed ones with --add-class"
            )
        assert settings.classes_max is not None
        after = replace(after, n_classes=settings.classes_max)
    if now.actions is not None:
        _check_no_classes(desired)
    if desired.classes:
        if now.class_names is None:
            raise SettingsError("--add-class: expected a pipeline whose classes have names")
        names = (*now.class_names, *desired.classes)
        after = replace(after, class_names=names, n_classes=len(names))
    is_named = now.open_classes or now.class_names is not None
    classes = _retired("class", now.retired_classes, desired.retired_classes, desired.restored_classes, is_named)
    is_named = now.features is not None
    features = _retired("feature", now.retired_features, desired.retired_features, desired.restored_features, is_named)
    return _with_learners(replace(after, retired_classes=classes, retired_features=features), desired)


def _check_no_classes(desired: DesiredChange) -> None:
    """Check that a change of a pipeline with actions names no classes."""
    for act, names in (
        ("add", desired.classes),
        ("retire", desired.retired_classes),
        ("restore", desired.restored_classes),
    ):
        if names:
            raise SettingsError(
                f"--{act}-class {names[0]}: expected a pipeline with classes, but its contexts list their actions. "
                "Add or omit the action there"
            )


def _retired(
    kind: str, now: tuple[str | int, ...], added: Sequence[str], removed: Sequence[str], is_named: bool
) -> tuple[str | int, ...]:
    """Return the retired classes or features after a change."""

    def values_of(flag: str, given: Sequence[str]) -> list[str | int]:
        if unknown := [text for text in given if not is_named and not (text.isascii() and text.isdigit())]:
            raise SettingsError(f"--{flag}-{kind} {unknown[0]}: expected an index, because they have no names")
        return [text if is_named else int(text) for text in given]

    restored = values_of("restore", removed)
    if unknown := [one for one in restored if one not in now]:
        expected = ", ".join(map(str, now)) or "a retired one, of which there are none"
        raise SettingsError(f"--restore-{kind} {unknown[0]}: expected one of {expected}")
    return tuple(dict.fromkeys((*(one for one in now if one not in restored), *values_of("retire", added))))


def with_values(now: TaskSettings, values: Mapping[str, Any]) -> TaskSettings:
    """Return a pipeline's settings after some of its stored settings have new values.

    A new `learner` has the parameters of the champion, if the champion is this learner. Otherwise, it has the defaults.

    Args:
        now: the pipeline's settings.
        values: the new values, by the names of stored settings.

    Raises:
        ChangeRefusedError: a setting is unknown, or a value has the wrong type.
    """
    for name, value in values.items():
        check_value(name, value)
    if (learner := values.get("learner", now.learner)) != now.learner:
        champion = now.champion or now.learner
        parameters = now.parameters_of(champion) if learner_of(champion) == learner else {}
        now = replace(now, learner=learner, parameters=dict(parameters))
    try:
        stored = stored_settings(now)
    except ParameterError as error:
        raise ChangeRefusedError(f"learner: {error}") from error
    if unknown := sorted(values.keys() - stored.keys()):
        expected = f"one of the settings {', '.join(sorted(stored))}{close_matches(unknown[0], stored)}"
        raise ChangeRefusedError(f"{unknown[0]}: expected {expected}")
    return restored_settings({**stored, **values})


def _with_learners(now: TaskSettings, desired: DesiredChange) -> TaskSettings:
    """Add and remove learners, change their parameters, and choose the champion."""
    learners = {now.learner: now.parameters, **now.challengers}
    if unknown := [name for name in desired.removed if name not in learners]:
        raise SettingsError(f"--remove-learner {unknown[0]}: expected one of {', '.join(learners)}")
    if "challenger" in desired.given:
        learners |= challengers_of(desired.settings)
    for text in desired.settings.param if "param" in desired.given else ():
        scope, name, value = parameter_of(text)
        if (owner := scope or now.learner) not in learners:
            raise SettingsError(f"--param {text!r}: expected one of the learners {', '.join(learners)}; got {owner!r}")
        learners[owner] = {**learners[owner], name: value}
    champion = now.champion if desired.champion is None else desired.champion
    kept = {name: given for name, given in learners.items() if name not in desired.removed}
    first = now.learner if now.learner in kept else champion
    if first is None or first not in kept:
        raise SettingsError(
            f"--remove-learner {now.learner}: expected another learner that decides; add --champion with one of "
            f"{', '.join(kept) or 'the challengers, of which there are none'}"
        )
    parameters, learner = dict(kept.pop(first)), learner_of(first)
    if champion == first:
        champion = None if desired.champion is None else learner
    started = {**now.started_from, **{name: file.digest for name, file in desired.starts.items()}}
    return replace(
        now, learner=learner, parameters=parameters, challengers=kept, champion=champion,
        started_from={name: digest for name, digest in started.items() if name in kept},
    )  # fmt: skip


def check_retention(connection: Connected, join: JoinSettings) -> None:
    """Check that the topics keep records long enough for new windows.

    The topics do not contain the learners' snapshot interval, so the check assumes the default. A learner checks its
    own interval when it starts.

    Raises:
        SettingsError: the retention is too short.
    """
    topics = connection.topics
    found = connection.broker.describe_topics(topics.all_of(shares_model=True))
    check_keep(topics.keep_ms(found), join, Settings.model_fields["snapshot_interval_ms"].default)


def request_for(now: Changed, after: TaskSettings, files: Iterable[StartFile] = ()) -> Request:
    """Return the request that changes a pipeline's settings. It has no changes if the settings are the same.

    The id is a digest of the request and of the requests before it: a request that is sent twice is applied once.

    Args:
        now: the pipeline's settings.
        after: the new settings.
        files: the model files with which new challengers start.

    Raises:
        ChangeRefusedError: the pipeline cannot make this change.
    """
    try:
        changes = differences(now.settings, after.resolved())
    except ParameterError as error:
        raise ChangeRefusedError(str(error)) from error
    digest = sha256(encode_request(Request(str(now.control), "", changes))).hexdigest()
    request = Request(digest[:16], user(), changes)
    changed(now.settings, request, known_models({file.digest: file.model for file in files}))
    if (size := len(encode_request(request))) > REQUEST_BYTES_MAX:
        raise ChangeRefusedError(f"expected a request of at most {REQUEST_BYTES_MAX:,} bytes; got {size:,}")
    return request


def user() -> str:
    """Return this process's user and host, for the audit trail."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user id without a name
        return socket.gethostname()


def send(broker: Broker, topics: Topics, request: Request, files: Iterable[StartFile] = ()) -> int:
    """Write a request, after the model files that it names, if the control topic does not contain them.

    Return the offset of the first request with its id in the control topic.
    """
    before = read_requests(broker, topics)
    with closing(broker.producer()) as producer:
        for file in files:
            if not before.has_model(file.digest):
                for key, value, headers in encode_model(file.content):
                    producer.send(topics.control, 0, key, value, headers)
                    producer.flush()
        producer.send(topics.control, 0, request.id.encode(), encode_request(request), HEADERS)
        producer.flush()
    requests = read_requests(broker, topics).all
    return next(each.offset for each in requests if each.request is not None and each.request.id == request.id)


def wait_until_applied(connection: Connected, control: int, stop: Callable[[], bool] = lambda: False) -> None:
    """Wait until all tasks that have started have applied the requests before an offset in the control topic.

    Raises:
        ChangeStoppedError: the command was stopped.
    """
    follower = JournalFollower(*connection)

    def behind() -> list[int]:
        return sorted(partition for partition, step in follower.steps.items() if step.control < control)

    show_if_due = every(
        STATUS_INTERVAL_MS,
        lambda: announce(
            f"waiting for {named(behind())}: is a learner running? It applies the request with its next step, after it "
            "has compiled new learners. Ctrl-C ends this command, but does not withdraw the request"
        ),
    )
    try:
        while behind():
            if stop():
                raise ChangeStoppedError(
                    f"stopped before {named(behind())} applied the request, which remains in the control topic. To see "
                    "whether it is applied: onebit changes"
                )
            follower.read(POLL_MS)
            show_if_due()
    finally:
        follower.close()


def named(partitions: Sequence[int]) -> str:
    """Return the partitions in a message, such as "partition 0" or "partitions 0, 1"."""
    return f"partition{'' if len(partitions) == 1 else 's'} {', '.join(map(str, partitions))}"


class Outcome(NamedTuple):
    """What the tasks have done with a request."""

    steps: dict[int, int]  # number of the step from which on the request is in force, by partition
    waiting: tuple[int, ...]  # partitions whose tasks have not read the request yet
    refusal: str  # why the tasks refused it; empty if they did not
    is_forgotten: bool = False  # True if retention has deleted a step that applied or refused it


class Recorded(NamedTuple):
    """A request with its outcome."""

    offset: int
    append_ms: int
    request: Request | None  # None if the record is not a request
    outcome: Outcome


def latest_steps(connection: Connected) -> dict[TopicPartition, JournalStep]:
    """Return the last step of each task that has started, by partition of the journal."""
    broker, topics, partitions = connection
    return last_steps(broker, [TopicPartition(topics.journal, partition) for partition in range(partitions)])


def outcome_of(broker: Broker, latest: Mapping[TopicPartition, JournalStep], offset: int) -> Outcome:
    """Return what the tasks have done with the request at an offset in the control topic.

    Args:
        broker: the broker.
        latest: the tasks' last steps; see `latest_steps`.
        offset: the request's offset.
    """
    steps, waiting, refusal, is_forgotten = {}, [], "", False
    for journal, last in sorted(latest.items()):
        if last.control <= offset:
            waiting.append(journal.partition)
        elif (step := _step_after(broker, journal, offset)) is None:
            is_forgotten = True
        else:
            steps[journal.partition] = step.number
            refusal = refusal or dict(step.refused).get(offset, "")
    return Outcome(steps, tuple(waiting), refusal, is_forgotten)


def _step_after(broker: Broker, journal: TopicPartition, offset: int) -> JournalStep | None:
    """Return the first step in a journal with the request at `offset`; None if retention may have deleted it."""
    start = offset_of_number(broker, journal, offset + 1, lambda record: decode_step(record).control)
    step = next(map(decode_step, read_partition(broker, journal, start=start)), None)
    return None if step is not None and step.number > 1 and start <= broker.beginnings([journal])[journal] else step


def recorded(connection: Connected) -> Iterator[Recorded]:
    """Yield all requests in the control topic, oldest first, with their outcomes."""
    latest = latest_steps(connection)
    for offset, append_ms, request, refusal in read_requests(connection.broker, connection.topics).all:
        moves = request is not None and request.moves
        outcome = Outcome({}, (), "") if moves else outcome_of(connection.broker, latest, offset)
        yield Recorded(offset, append_ms, request, outcome._replace(refusal=refusal or outcome.refusal))


def first_better(connection: Connected, stop: Callable[[], bool]) -> str:
    """Read the topics until a challenger is better than the champion, and return its name.

    A challenger is better if the confidence interval for its reward minus the champion's is above 0. The estimates use
    all of the current champion's decisions in the topics.

    Raises:
        SettingsError: the pipeline has no challengers.
        ChangeStoppedError: the command was stopped.
    """
    settings = settings_now(connection).settings
    if not settings.members:
        raise SettingsError(f"{connection.topics.journal}: expected a pipeline with challengers")
    estimator = challenger_estimator(settings.range_of_rewards)
    reader = TopicReader(*connection, estimator)

    def show() -> None:
        for line in challenger_lines(estimator.now()):
            announce(line)

    show_if_due = every(STATUS_INTERVAL_MS, show)
    while not stop():
        reader.read()
        if (better := estimator.now().better) is not None:
            show()
            return better
        show_if_due()
        time.sleep(READ_INTERVAL_S)
    raise ChangeStoppedError("stopped before a challenger was better than the champion")
