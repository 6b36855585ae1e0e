"""Onebit on a Kafka broker with TLS, SASL and ACLs: authentication, its errors, and the ACLs that each program needs.

The commands in docs/security.md add the ACLs. With all ACLs, every program works. If a program lacks an ACL that it
needs, it reports the missing ACL.
"""

import base64
import io
import json
import time
from collections.abc import Iterable
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import trustme
from kafka import KafkaConsumer, KafkaProducer

from onebit.cli.app import main
from onebit.testing.processes import wait_for
from stream.devkafka import local_kafka
from stream.devkafka.java import LocalKafkaError
from stream.devkafka.local_kafka import start
from stream.devkafka.security import LocalSecurity
from stream.errors import ExitCode
from stream.kafka.client_config import client_config, read_properties
from stream.kafka.connection import ConnectionSettings, connect
from stream.kafka.kafka_python.security import settings_of
from stream.kafka.port import AccessError
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics
from tests.monitored import decided_in_windows, reported
from tests.pipeline import context_value, feedback_value
from tests.processes import CLIENTS, Pipeline, free_port
from tests.secured import PASSWORD, PLAIN_USER, Allowed, Secured, documented_acls

pytestmark = pytest.mark.usefixtures("own_shell")

EVENTS = 40
TOPICS = Topics.with_prefix()
COMMANDS = {
    "replay": ("replay", "--resume", "--events", str(EVENTS + 1), "--rate", "10000"),
    "learner": ("learn", "--learner", "banditron", "--snapshot-interval", "1ms", "--window", "2s"),
    "feedback": ("feedback", "--delay", "none"),
    "auditor": ("verify",),
}
"""The command that each user in docs/security.md runs."""

IMPLIED = {("learner", "Describe"), ("auditor", "Describe")}  # Read and Write imply Describe
NEEDS_SNAPSHOTS = Allowed("learner", "Read", "topic", "onebit.snapshots", prefixed=False)
OF_SHARED_MODELS = [
    Allowed("learner", operation, "topic", name, prefixed=False)
    for operation, name in (("Write", "onebit.updates"), ("Read", "onebit.updates"), ("Read", "onebit.predictions"))
]
"""ACLs that only a learner with a shared model needs. Such a learner writes to these topics before it reads them."""
COMMITS_FIRST = ("onebit.snapshots", "Write")  # without this ACL, a learner fails only after its first step


class CommandResult(NamedTuple):
    code: int
    output: str


@pytest.fixture(scope="module")
def outputs() -> list[str]:
    """All commands' output."""
    return []


@pytest.fixture(scope="module")
def users(secured: Secured) -> Secured:
    """A broker with the users in docs/security.md and their ACLs."""
    allowed = documented_acls()
    secured.add_users(*{one.user for one in allowed})
    secured.allow(allowed)
    return secured


def run(file: Path, *arguments: str, client: str = CLIENTS[0]) -> CommandResult:
    """Run a command in this process with a client properties file."""
    reported = io.StringIO()
    with redirect_stdout(reported), redirect_stderr(reported), pytest.raises(SystemExit) as ended:
        main([*arguments, "--client-config", str(file), "--client", client])
    return CommandResult(int(ended.value.code or 0), reported.getvalue())


def token(subject: str) -> str:
    """Return an unsigned token, which the broker's built-in validator accepts."""
    claims = {"sub": subject, "iat": time.time() - 10, "exp": time.time() + 600}
    parts = ({"alg": "none"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join((*encoded, ""))


@pytest.mark.each_client
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_every_sasl_mechanism_authenticates(users: Secured, tmp_path: Path, mechanism: str, client: str) -> None:
    file = users.file_of(PLAIN_USER if mechanism == "PLAIN" else "learner", sasl_mechanism=mechanism)
    if mechanism == "OAUTHBEARER":
        printed = tmp_path / "token.json"
        printed.write_text(json.dumps({"access_token": token("learner"), "expires_in": 600}))
        file = users.file_of(
            "", sasl_mechanism=mechanism, sasl_password="", sasl_oauthbearer_token_command=f"cat {printed}"
        )
    with closing(
        connect(ConnectionSettings(users.kafka.bootstrap, client_config(read_properties(file))), client)
    ) as broker:
        if mechanism != "PLAIN":  # the user that logs in with PLAIN has no permissions
            with closing(broker.transactional_producer("onebit.learner-1")):
                pass


def test_scram_user_name_may_contain_special_characters(secured: Secured, client: str) -> None:
    secured.add_users("a,b=c")
    config = client_config(read_properties(secured.file_of("a,b=c")))
    with (
        closing(connect(ConnectionSettings(secured.kafka.bootstrap, config), client)) as broker,
        pytest.raises(AccessError, match="does not allow user a,b=c"),  # authenticated, but without permissions
    ):
        broker.describe_topics(["none"])


REJECTED = {
    "wrong password": (
        {"sasl_password": "wrong-" + PASSWORD},
        "rejected user learner: the name or the password is wrong",
    ),
    "unknown user": ({"sasl_username": "nobody"}, "rejected user nobody: the name or the password is wrong"),
    "mechanism without this user": (
        {"sasl_mechanism": "PLAIN"},
        "rejected user learner: the name or the password is wrong (sasl.username, sasl.password; PLAIN)",
    ),
    "invalid token": (
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_command": "echo a.b.c"},
        "the broker does not accept the token printed by sasl.oauthbearer.token.command",
    ),
    "failing token command": (
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_command": "false --secret"},
        "sasl.oauthbearer.token.command: expected a token; the command false ended with exit code 1",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejected_login_is_reported_in_one_line(users: Secured, outputs: list[str], case: str, client: str) -> None:
    changes, why = REJECTED[case]
    ended = run(users.file_of("learner", **changes), "topics", "describe", client=client)
    outputs.append(ended.output)
    assert ended.code == ExitCode.USAGE
    assert ended.output.startswith("error: ")
    assert ended.output.count("\n") == 1
    assert why in ended.output


def test_certificate_of_another_ca_is_not_trusted(users: Secured, tmp_path: Path, client: str) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    file = users.file_of("learner", ssl_ca_location=str(tmp_path / "other.pem"))
    ended = run(file, "topics", "describe", client=client)
    assert ended.code == ExitCode.USAGE
    assert ended.output.count("\n") == 1
    assert f"certificate is not trusted: it is not signed by the authority in {tmp_path}/other.pem" in ended.output
    assert "ssl.ca.location" in ended.output


def test_wrong_security_protocol_is_reported(users: Secured) -> None:
    file = users.file_of("", security_protocol="PLAINTEXT", sasl_mechanism="", sasl_password="", ssl_ca_location="")
    ended = run(file, "topics", "describe", "--connect-timeout", "500ms")
    assert ended.code == ExitCode.UNAVAILABLE
    assert "uses a different protocol than PLAINTEXT" in ended.output
    assert "onebit kafka up" not in ended.output


def test_data_dir_of_a_secured_broker_stays_secured(users: Secured, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    (storage / "meta.properties").write_text("version=1\n")
    with pytest.raises(LocalKafkaError, match="were created without security"):
        start(0, tmp_path, secure=True)
    LocalSecurity(tmp_path).make()  # secure=True is then no longer needed
    assert local_kafka._security(tmp_path, secure=False, is_formatted=True) is not None


@pytest.fixture(scope="module")
def started(users: Secured, outputs: list[str]) -> Secured:
    """A broker with contexts and their feedback, one malformed context, and a malformed record in each output topic."""
    replayed = ("replay", "--events", str(EVENTS), "--rate", "10000")
    for ended in (run(users.file_of("owner"), "topics", "create"), run(users.file_of("replay"), *replayed)):
        assert ended.code == ExitCode.OK, ended.output
        outputs.append(ended.output)
    own = settings_of(client_config(users.properties))
    consumer = KafkaConsumer(
        TOPICS.contexts, bootstrap_servers=users.kafka.bootstrap, auto_offset_reset="earliest", **own
    )
    producer = KafkaProducer(bootstrap_servers=users.kafka.bootstrap, **own)
    with closing(consumer), closing(producer):
        ids = [json.loads(next(consumer).value)["id"] for _ in range(EVENTS)]
        producer.send(TOPICS.contexts, b"no context", key=b"bad")
        for output in (TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter):  # a learner reads their last records
            producer.send(output, b"no output", key=b"bad")
        for event_id in ids:
            producer.send(TOPICS.feedback, json.dumps({"id": event_id, "reward": 1}).encode(), key=event_id.encode())
        producer.flush()
    return users


def needed_by(*users: str) -> list[Allowed]:
    """Return the ACLs that these users need.

    The tests remove the ACLs one by one. In this order, each program still has work that requires the removed ACL.
    """
    later = (NEEDS_SNAPSHOTS, *OF_SHARED_MODELS)
    needed = [one for one in documented_acls() if one.user in users and one not in later]
    found = [one for one in needed if (one.user, one.operation) not in IMPLIED]

    def turn(one: Allowed) -> tuple[bool, bool]:
        return one.user == "feedback" and one.operation != "Write", (one.name, one.operation) == COMMITS_FIRST

    return sorted(found, key=turn)


@pytest.mark.parametrize("missing", needed_by("replay", "auditor", "learner"), ids=str)
def test_program_reports_its_missing_acl(started: Secured, outputs: list[str], missing: Allowed, client: str) -> None:
    if (missing.name, missing.operation) == COMMITS_FIRST:  # an earlier learner has written a snapshot of its last step
        own = settings_of(client_config(started.properties))
        with closing(KafkaProducer(bootstrap_servers=started.kafka.bootstrap, **own)) as producer:
            producer.send(TOPICS.feedback, feedback_value(f"nobody, {client}", 1))
    assert_names(started, outputs, missing, client)
    wait_for(lambda: not open_transactions(started), "no transaction remains open", timeout_s=20)


@pytest.fixture(scope="module")
def answered(started: Secured, tmp_path_factory: pytest.TempPathFactory) -> Secured:
    """A broker that also has a prediction for each context, as input for the feedback program."""
    with closing(pipeline_of("learner", started, tmp_path_factory.mktemp("answered"))) as pipeline:
        learner = pipeline.start(*COMMANDS["learner"])
        own = settings_of(client_config(started.properties))
        consumer = KafkaConsumer(
            TOPICS.predictions, bootstrap_servers=started.kafka.bootstrap, auto_offset_reset="earliest",
            isolation_level="read_committed", **own,
        )  # fmt: skip
        with closing(consumer):
            for _ in range(1 + EVENTS):
                next(consumer)
        learner.wait_until_it_says("decided")
        assert learner.stop() == ExitCode.OK
    return started


@pytest.mark.parametrize("missing", needed_by("feedback"), ids=str)
def test_feedback_program_reports_its_missing_acl(
    answered: Secured, outputs: list[str], missing: Allowed, client: str
) -> None:
    assert_names(answered, outputs, missing, client)


CHANGE = ("change", "--retain", "2h", "--yes", "--no-wait")
NEEDED_TO_WAIT = {"onebit.predictions", "onebit.examples"}  # read with --champion-when-better


@pytest.mark.parametrize("missing", [one for one in needed_by("operator") if one.name not in NEEDED_TO_WAIT], ids=str)
def test_change_reports_its_missing_acl(answered: Secured, outputs: list[str], missing: Allowed, client: str) -> None:
    assert_names(answered, outputs, missing, client, CHANGE)


@pytest.mark.parametrize("user", ["replay", "feedback", "gateway", "learner"])
def test_right_to_send_events_gives_no_right_to_change_settings(
    answered: Secured, outputs: list[str], user: str, client: str
) -> None:
    listed = ("changes", "--json")
    before = run(answered.file_of("auditor"), *listed, client=client)
    assert before.code == ExitCode.OK, before.output
    ended = run(answered.file_of(user), "change", "--orphan-window", "1m", "--yes", "--no-wait", client=client)
    outputs.append(ended.output)
    assert ended.code == ExitCode.USAGE
    assert f"kafka-acls --add --allow-principal User:{user} --operation" in ended.output
    assert run(answered.file_of("auditor"), *listed, client=client) == before


def pipeline_of(user: str, users: Secured, folder: Path, client: str = CLIENTS[0]) -> Pipeline:
    """Return a pipeline whose programs run as a user."""
    return Pipeline(
        users.kafka.bootstrap, "onebit.", folder, client_config=users.file_of(user, sasl_password=""),
        sasl_password=PASSWORD, client=client,
    )  # fmt: skip


def open_transactions(users: Secured) -> list[str]:
    """Return the topics with an open transaction. The broker aborts a dead program's transactions after 60 s."""
    with closing(connect(ConnectionSettings(users.kafka.bootstrap, client_config(users.properties)))) as broker:
        ends = broker.ends([TopicPartition(topic, 0) for topic in TOPICS])
    return [tp.topic for tp, end in ends.items() if end.stable < end.high_watermark]


class SeparateTopics:
    """Topics for a single test, for which the users have the ACLs in docs/security.md."""

    def __init__(self, users: Secured, prefix: str, client: str, *arguments: str) -> None:
        self.topics = Topics.with_prefix(prefix)
        self._users, self._prefix = users, prefix
        users.allow([self.among(one) for one in documented_acls() if one.user in ("learner", "auditor")])
        assert users.kafka.client_config is not None
        create = ("topics", "create", "--bootstrap", users.kafka.bootstrap, "--topic-prefix", prefix, *arguments)
        created = run(users.kafka.client_config, *create, client=client)
        assert created.code == ExitCode.OK, created.output

    def among(self, one: Allowed) -> Allowed:
        """Return a copy of the ACL that uses the prefix of these topics."""
        return one._replace(name=one.name.replace("onebit.", self._prefix, 1))

    def write(self, *, contexts: Iterable[str] = (), feedback: Iterable[str] = ()) -> None:
        """Write records as a service does."""
        own = settings_of(client_config(self._users.properties))
        with closing(KafkaProducer(bootstrap_servers=self._users.kafka.bootstrap, **own)) as producer:
            for event_id in contexts:
                producer.send(self.topics.contexts, context_value(event_id), key=event_id.encode(), partition=0)
            for event_id in feedback:
                producer.send(self.topics.feedback, feedback_value(event_id, 1), key=event_id.encode(), partition=0)
            producer.flush()


SIZES = ("--learner", "banditron", "--n-classes", "3", "--n-features", "4", "--window", "10m")


def test_learner_of_a_shared_model_reports_its_missing_acl(
    users: Secured, outputs: list[str], tmp_path: Path, client: str
) -> None:
    assert set(OF_SHARED_MODELS) < set(documented_acls())
    prefix, shared = f"shared.{client}.", ("--model", "shared")
    own = SeparateTopics(users, prefix, client, *shared, "--keep", "unlimited")  # without early snapshots
    own.write(contexts=("answered", "waits"), feedback=("answered",))
    command = ("learn", *SIZES, "--topic-prefix", prefix, *shared)
    writes, *reads = map(own.among, OF_SHARED_MODELS)
    assert_names(users, outputs, writes, client, command)
    with closing(pipeline_of("learner", users, tmp_path, client)) as pipeline:
        learner = pipeline.start(*command)
        learner.wait_until_it_says("decided 2, matched 1,")
        learner.kill()  # a last snapshot would contain the log and the pending decision
    for missing in reads:  # the learner reads the log and the pending decision
        assert_names(users, outputs, missing, client, command)


def test_learner_with_revoked_write_acl_reports_it_and_loses_nothing(
    users: Secured, outputs: list[str], tmp_path: Path, client: str
) -> None:
    own = SeparateTopics(users, prefix := f"revoked.{client}.", client)
    own.write(contexts=("before",))
    command = ("learn", *SIZES, "--topic-prefix", prefix)
    revoked = own.among(Allowed("learner", "Write", "topic", "onebit.predictions", prefixed=False))
    with closing(pipeline_of("learner", users, tmp_path, client)) as pipeline:
        learner = pipeline.start(*command)
        learner.wait_until_it_says("decided 1,")
        with users.without(revoked):
            own.write(contexts=("meanwhile",), feedback=("before",))
            assert learner.wait() == ExitCode.USAGE, learner.said()
        outputs.append(learner.said())
        (line,) = [line for line in learner.said().splitlines() if line.startswith("error: ")]
        assert line == learner.said().splitlines()[-1]
        assert f"to do this: Write on topic {own.topics.predictions};" in line
        again = pipeline.start(*command)
        again.wait_until_it_says("decided 2, matched 1,")
        assert again.stop() == ExitCode.OK
    with closing(pipeline_of("auditor", users, tmp_path, client)) as auditor:
        found = auditor.verify("--topic-prefix", prefix)
    assert found["ok"], found
    (ledger,) = (partition["audited"] for partition in found["partitions"])
    assert (ledger["contexts"], ledger["decided"], ledger["matched"], ledger["feedback"]) == (2, 2, 1, 1)


def assert_names(
    started: Secured, outputs: list[str], missing: Allowed, client: str, command: tuple[str, ...] = ()
) -> None:
    with started.without(missing):
        ended = run(started.file_of(missing.user), *(command or COMMANDS[missing.user]), client=client)
    outputs.append(ended.output)
    assert ended.code == ExitCode.USAGE, ended.output
    *_, line = ended.output.splitlines()
    assert line.startswith("error: "), ended.output
    # If the ACL is for a prefix, the reported name begins with that prefix.
    assert f"to do this: {missing.operation} on {missing.kind} {missing.name}" in line
    assert f"kafka-acls --add --allow-principal User:{missing.user} --operation {missing.operation}" in line


def test_documented_acls_suffice_and_no_secret_is_printed(
    started: Secured, outputs: list[str], tmp_path: Path, client: str
) -> None:
    events = EVENTS + 10 * (1 + CLIENTS.index(client))  # each client needs new events
    replayed = run(started.file_of("replay"), "replay", "--resume", "--events", str(events), client=client)
    assert replayed.code == ExitCode.OK, replayed.output
    outputs.append(replayed.output)
    commands = COMMANDS | {
        "monitor": ("monitor", "--page-port", str(port := free_port())),
        "gateway": ("serve", "--serve-port", str(http := free_port()), "--timeout", "30s"),
    }
    pipelines = {user: pipeline_of(user, started, tmp_path, client) for user in commands}
    programs = [pipelines[user].start(*commands[user]) for user in ("learner", "feedback", "monitor", "gateway")]
    try:
        programs[0].wait_until_it_says("started as instance")
        wait_for(
            lambda: http_status(http, "decide", {"id": "own", "x": {"i": [0]}}) == HTTPStatus.OK, "the gateway decides"
        )
        assert http_status(http, "feedback", {"id": "own", "reward": 1}) == HTTPStatus.ACCEPTED
        change = ("change", "--orphan-window", f"{2 + CLIENTS.index(client)}m", "--yes")  # each client needs a change
        changed = run(started.file_of("operator"), *change, client=client)
        outputs.append(changed.output)
        assert (changed.code, "partition 0 from step" in changed.output) == (ExitCode.OK, True), changed.output
        found = pipelines["auditor"].verify("--wait-events", str(events + 1), "--timeout", "60s")
        wait_for(lambda: decided_in_windows(reported(port)) == events + 1, "the monitor has read all decisions")
        command_lines = [" ".join(psutil.Process(program.process.pid).cmdline()) for program in programs]
        assert [program.stop() for program in programs] == 4 * [ExitCode.OK]
    finally:
        for pipeline in pipelines.values():
            pipeline.close()

    assert found["ok"], found
    own = settings_of(client_config(started.properties))
    consumer = KafkaConsumer(
        *TOPICS, bootstrap_servers=started.kafka.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=500, **own
    )
    with closing(consumer):
        stored = [repr((record.key, record.value, record.headers)) for record in consumer]
    assert len(stored) > 3 * events
    logged = [program.said() for program in programs]
    for text in (*outputs, *command_lines, *logged, *stored, json.dumps(found)):
        assert PASSWORD not in text


def http_status(port: int, operation: str, body: object) -> int:
    """Return the HTTP status of a request, or 0 if the gateway is not listening yet."""
    with suppress(OSError, HTTPException), closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", f"/v1/{operation}", json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().status
    return 0


def test_learner_without_read_acl_on_snapshots_reports_it(started: Secured, outputs: list[str], client: str) -> None:
    assert NEEDS_SNAPSHOTS in documented_acls()
    assert_names(started, outputs, NEEDS_SNAPSHOTS, client)  # the topic has snapshots by now
