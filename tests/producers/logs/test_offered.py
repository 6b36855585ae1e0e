"""Logs of decisions among actions with features."""

import csv
import gzip
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import parquet

from producers.datasets.base import DatasetError
from producers.datasets.log import LogDataset, log_dataset
from producers.datasets.logs.formats import Format, format_of
from producers.datasets.logs.mapping import LogMapping, mapping_of
from producers.datasets.logs.reading import LogFile, open_log
from producers.datasets.logs.stored import open_stored, store_log
from producers.gateway.personalizer import rank_request
from producers.replay.program import offer_of
from stream.wire.actions import key_of
from stream.wire.named_features import build, to_plain
from stream.wire.records import Features

HASHED = to_plain(build({}, 12, unknown=True))
ENCODING = HASHED | {"actions": HASHED}

VW = """\
shared |user major=arts age:21
|article topic=sport length:3
0:-1:0.6 'cup|article topic=news length:9
'tea|article topic=sport length:3

shared |user age:30
'tea |article topic=sport length:3
0:0:0.5 'cup |article topic=news length:9

|article topic=art
|article topic=art
"""

DECISION: dict[str, Any] = {
    "_label_cost": -1, "Timestamp": "2021-02-04T16:31:29.246Z", "EventId": "e1", "a": [2, 1, 3], "p": [0.8, 0.1, 0.1],
    "c": {
        "user": {"age": 21},
        "_multi": [
            {"_tag": "tea", "item": {"topic": "drink", "price": 3}},
            {"_tag": "cup", "item": {"topic": "thing", "price": 5, "new": True}},
            {"_tag": "pot", "item": [{"topic": "thing"}, {"price": 7}]},
        ],
    },
}  # fmt: skip


def changed(context: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {**DECISION, "EventId": "e2", "c": {**DECISION["c"], **(context or {})}, **fields}


def dsjson(tmp_path: Path, *lines: dict[str, Any], **options: Any) -> LogFile:
    path = tmp_path / "decisions"
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return open_log(path, **options)


def dataset_of(log: LogFile, folder: Path) -> LogDataset:
    """Store the log, and open it again as a data set."""
    store_log(log, folder)
    found = open_stored(folder)
    return log_dataset(found, found.rows, found.n_features, found.class_names, found.name, blocks=found.blocks)


def named(x: Features, names: dict[int, str]) -> dict[str, float]:
    return {names[index]: value for index, value in zip(x.indices.tolist(), x.values.tolist(), strict=True)}


def offers(log: LogFile, folder: Path) -> list[tuple[dict[str, float], dict[str, dict[str, float]]]]:
    """The named features of each context, and of its actions by id."""
    assert log.action_encoder is not None
    data = dataset_of(log, folder)
    found = []
    of_contexts, of_actions = (
        {
            index: name if not value else f"{name}={value}"
            for name, one in encoder.names.items()
            for value, index in (one.indices or {}).items()
        }
        for encoder in (log.encoder, log.action_encoder)
    )
    for row in range(data.rows):
        x, actions = offer_of(data, row)
        assert actions is not None
        found.append((named(x, of_contexts), {action.id: named(action.x, of_actions) for action in actions}))
    return found


def test_vw_text_with_a_line_per_action_is_read(tmp_path: Path) -> None:
    (tmp_path / "log.vw").write_text(VW)
    log = open_log(tmp_path / "log.vw")
    assert log.format is Format.VW_TEXT_ACTIONS
    (batch,) = log.batches()
    assert batch.ids == ["log-000000", "log-000001", "log-000002"]
    assert (batch.actions.tolist(), batch.propensities.tolist()[:2]) == ([1, 1, -1], [0.6, 0.5])
    assert batch.rewards.tolist()[:2] == [1.0, 0.0]
    rows = offers(log, tmp_path / "stored")
    sport, news = (
        {"article=topic=sport": 1.0, "article=length": 3.0},
        {"article=topic=news": 1.0, "article=length": 9.0},
    )
    assert rows[1] == ({"user=age": 30.0}, {"tea": sport, "cup": news})
    context, untagged = rows[0]
    assert context == {"user=major=arts": 1.0, "user=age": 21.0}
    assert list(untagged.values()) == [sport, news, sport]  # one of the three actions has no tag
    (first, second) = rows[2][1]
    assert second == f"{first}~2"  # actions with the same features


def test_action_without_a_tag_has_the_same_id_in_all_decisions(tmp_path: Path) -> None:
    (tmp_path / "log.vw").write_text(
        "0:0:1 |a x y:2\n|a z\n\n|a z\n0:-1:.5 |a x y:2\n\nshared |u a\n|a z\n|a v\n\n".replace(".5", "0.5")
    )
    ids = [list(actions) for _, actions in offers(open_log(tmp_path / "log.vw"), tmp_path / "stored")]
    assert ids[0] == ids[1][::-1]
    assert ids[2][0] == ids[0][1] != ids[2][1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shared |u a\n0:1:0.5 | b\n| c\n", Format.VW_TEXT_ACTIONS),
        ("shared 'e1|u a\n", Format.VW_TEXT_ACTIONS),
        ("0:1:0.5 | b\n| c\n\n| b\n", Format.VW_TEXT_ACTIONS),
        ("| b\n1:1:0.5 'x | c\n\n", Format.VW_TEXT_ACTIONS),
        ("1:1:0.5 | b\n2:1:0.5 | c\n\n3:1:0.5 | c\n", Format.VW_TEXT),
        ("1:1:0.5 | b\n\n2:1:0.5 | c\n", Format.VW_TEXT),
        ("1 2:1:0.5 | b\n1 2 | c\n\n", Format.VW_TEXT),
        ("2:1:0.5 | b\n", Format.VW_TEXT),
    ],
)
def test_lines_of_actions_are_distinguished_from_lines_of_decisions(text: str, expected: Format) -> None:
    assert format_of(text.encode(), "log") is expected


BAD_VW = [
    ("0:1:0.5 | b\n0:1:0.5 | c\n", "label: expected nothing, or a label such as 0:-1:0.6"),
    ("0:x:0.5 | b\n| c\n", "label: expected a cost, and a probability in (0, 1]"),
    ("0:1:0 | b\n| c\n", "label: expected a cost, and a probability in (0, 1]"),
    ("1:1 | b\n| c\n", "label: expected nothing, or a label"),
    ("| b\nshared | c\n", "label: expected shared on a decision's first line only"),
    ("shared | b\n", "actions: expected 1 to 50 actions"),
    ("| b\nno bar\n", "line: expected UTF-8 text with a | before the features"),
    ("|a b:inf\n|a c\n", "actions, a: b: expected a finite number after the colon"),
]


@pytest.mark.parametrize(("lines", "reason"), BAD_VW)
def test_invalid_vw_decision_is_reported_or_counted(tmp_path: Path, lines: str, reason: str) -> None:
    path = tmp_path / "log.vw"
    path.write_text(f"{VW}\n{lines}\n{VW}")
    log = open_log(path, on_bad_row="skip")
    assert sum(len(batch.ids) for batch in log.batches()) == 6
    assert [name.startswith(reason) for name in log.skipped] == [True]
    with pytest.raises(DatasetError, match="line 13"):
        open_log(path)


def test_decisions_before_the_end_of_a_truncated_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.vw.gz"
    whole = gzip.compress((VW + "\n").encode() * 3_000, 0)
    path.write_bytes(whole[: len(whole) // 2])
    log = open_log(path, on_bad_row="skip")
    ids = [one for batch in log.batches() for one in batch.ids]
    assert 4_000 < len(ids) < 5_000
    assert ids == [f"log-{number:06}" for number in range(len(ids))]
    assert list(log.skipped.values()) == [1]


def test_dsjson_with_action_features_is_read(tmp_path: Path) -> None:
    log = dsjson(tmp_path, DECISION, changed(_label_cost=0, a=[1, 3], p=[0.5, 0.5]))
    assert log.format is Format.VW_DSJSON_ACTIONS
    (batch,) = log.batches()
    assert (batch.actions.tolist(), batch.propensities.tolist()) == ([1, 0], [0.8, 0.5])
    assert batch.rewards.tolist() == [1.0, 0.0]
    pot = {"item.topic=thing": 1.0, "item.price": 7.0}
    cup = {"item.topic=thing": 1.0, "item.price": 5.0, "item.new": 1.0}
    tea = {"item.topic=drink": 1.0, "item.price": 3.0}
    assert offers(log, tmp_path / "stored") == [({"user.age": 21.0}, {"tea": tea, "cup": cup, "pot": pot})] * 2
    data = dataset_of(log, tmp_path / "again")
    assert [data.eligible(row) for row in range(2)] == [None, ["tea", "pot"]]
    assert [data.baseline(row) for row in range(2)] == ["tea", "tea"]
    assert data.known_of("e1")[:3] == (None, 1, 1)


def test_repeated_tags_are_replaced_by_hashes(tmp_path: Path) -> None:
    actions = [{"_tag": "tag", "n": {"f": k}} for k in (1, 2, 2)]
    log = dsjson(
        tmp_path, changed({"_multi": actions}), changed({"_multi": actions[1:]}, EventId="e3", a=[1, 2], p=[1, 0])
    )
    first, second = ([*names] for _, names in offers(log, tmp_path / "stored"))
    assert (len(set(first)), first[1:]) == (3, second)


BAD_DSJSON: list[tuple[dict[str, Any], str]] = [
    (changed({"_multi": []}), "c._multi: expected a list of objects, one for each action"),
    (changed({"_multi": [1, 2, 3]}), "c._multi: expected a list of objects, one for each action"),
    (changed(a=7), "a: expected a list of actions from 1 to"),
    (changed(a=[4, 1, 2]), "a: expected distinct numbers from 1 to 3"),
    (changed(a=[2, 2, 1]), "a: expected distinct numbers from 1 to 3"),
    (changed(p=[0, 0.5, 0.5]), "p: expected one probability per action, the first in (0, 1]"),
    (changed({"_multi": [{"_tag": str(k)} for k in range(51)]}), "actions: expected 1 to 50 actions"),
    (changed({"_multi": [{"_tag": "x" * 257}, {"_tag": "y"}, {}]}, a=[1]), "p: expected one probability per action"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_DSJSON)
def test_invalid_dsjson_decision_is_counted(tmp_path: Path, line: dict[str, Any], reason: str) -> None:
    log = dsjson(tmp_path, DECISION, line, changed(EventId="e3"), on_bad_row="skip")
    assert [one for batch in log.batches() for one in batch.ids] == ["e1", "e3"]
    assert [name.startswith(reason) for name in log.skipped] == [True]


def test_long_id_is_invalid(tmp_path: Path) -> None:
    actions = [{"_tag": "x" * 257, "n": 1}, {"_tag": "y", "n": 2}, {"_tag": "z", "n": 3}]
    log = dsjson(tmp_path, DECISION, changed({"_multi": actions}), on_bad_row="skip")
    assert sum(len(batch.ids) for batch in log.batches()) == 1
    assert list(log.skipped) == ["actions: expected an id of 1 to 256 bytes"]


ROWS: list[dict[str, Any]] = [
    {
        "id": "v1", "x": {"age": 21, "city": "rome"}, "action": "cup", "p": 0.5, "r": 1,
        "actions": [{"id": "tea", "x": {"price": 3, "kind": "drink"}}, {"id": "cup", "x": {"price": 5}}],
    },
    {
        "id": "v2", "x": {"age": 30}, "action": "7", "p": 0.25, "r": 0, "eligible": ["7", "tea"], "rule": "tea",
        "actions": [{"id": "cup", "x": {"price": 5}}, {"id": 7}, {"id": "tea", "x": {"price": 3, "kind": "drink"}}],
    },
]  # fmt: skip
EXPECTED = [
    ({"age": 21.0, "city=rome": 1.0}, {"tea": {"price": 3.0, "kind=drink": 1.0}, "cup": {"price": 5.0}}),
    ({"age": 30.0}, {"cup": {"price": 5.0}, "7": {}, "tea": {"price": 3.0, "kind=drink": 1.0}}),
]


def mapping(**fields: Any) -> LogMapping:
    roles = {name: name for name in ("id", "action", "actions", "eligible", "x")}
    given = {**roles, "propensity": "p", "reward": "r", "baseline": "rule", **fields}
    return mapping_of({key: value for key, value in given.items() if value is not None}, "test mapping")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSON lines, or as a table with JSON text."""
    if path.suffix == ".jsonl":
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        return path
    texts = [
        {name: orjson.dumps(value).decode() if type(value) in (dict, list) else value for name, value in row.items()}
        for row in rows
    ]
    for text, row in zip(texts, rows, strict=True):
        text["eligible"] = "|".join(row.get("eligible", ()))
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS[1]))
            writer.writeheader()
            writer.writerows(texts)
    else:
        parquet.write_table(pa.Table.from_pylist(texts, pa.Table.from_pylist([texts[1], texts[0]]).schema), path)
    return path


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv", "log.parquet"])
def test_table_with_a_column_of_actions_is_read(tmp_path: Path, name: str) -> None:
    log = open_log(write(tmp_path / name, ROWS), mapping())
    (batch,) = log.batches()
    assert (batch.actions.tolist(), batch.propensities.tolist(), batch.rewards.tolist()) == (
        [1, 1], [0.5, 0.25], [1.0, 0.0],
    )  # fmt: skip
    assert offers(log, tmp_path / "stored") == EXPECTED
    data = dataset_of(log, tmp_path / "again")
    assert [data.eligible(row) for row in range(2)] == [None, ["7", "tea"]]
    assert [data.baseline(row) for row in range(2)] == [None, "tea"]


def test_features_of_contexts_can_be_columns(tmp_path: Path) -> None:
    of_columns = mapping(x=None, features={"numeric": ["x.age"], "categorical": ["x.city"]})
    log = open_log(write(tmp_path / "log.jsonl", ROWS), of_columns)
    contexts = [{f"x.{name}": value for name, value in x.items()} for x, _ in EXPECTED]
    assert offers(log, tmp_path / "stored") == list(zip(contexts, [actions for _, actions in EXPECTED], strict=True))


def test_features_without_names_are_numbered(tmp_path: Path) -> None:
    row = {
        **ROWS[0],
        "x": [0.5, 0.0],
        "actions": [{"id": "tea", "x": [3, 4]}, {"id": "cup", "x": {"i": [1], "v": [2]}}],
    }
    log = open_log(write(tmp_path / "log.jsonl", [row]), mapping(eligible=None, baseline=None))
    assert offers(log, tmp_path / "stored") == [({"x0": 0.5}, {"tea": {"x0": 3.0, "x1": 4.0}, "cup": {"x1": 2.0}})]


def test_mapping_gives_kinds_and_the_number_of_actions(tmp_path: Path) -> None:
    given = mapping(
        eligible=None, baseline=None, actions_max=9, action_features={"text": ["kind"], "categorical": ["price"]}
    )
    rows = [{**ROWS[0], "actions": [{"id": "tea", "x": {"price": 3, "kind": "Hot hot drink"}}, {"id": "cup"}]}]
    log = open_log(write(tmp_path / "log.jsonl", rows), given)
    assert log.blocks is not None
    assert (log.blocks.places, log.class_names) == (9, tuple(map(str, range(9))))
    assert offers(log, tmp_path / "stored")[0][1] == {
        "tea": {"price=3": 1.0, "kind=hot": 2.0, "kind=drink": 1.0},
        "cup": {},
    }


BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"actions": []}, "actions: expected 1 to 50 actions"),
    ({"actions": "tea"}, "actions: expected a list of actions such as"),
    ({"actions": [{"id": "cup"}, {"id": "cup"}]}, "actions: expected different ids"),
    ({"actions": [{"id": "cup"}, {"x": {}}]}, "actions: expected an id of 1 to 256 bytes"),
    ({"actions": [{"id": "cup", "x": 3}]}, "actions, x: expected features by name, a list of numbers"),
    ({"action": "pot"}, "actions: expected the played, eligible and baseline actions"),
    ({"rule": "pot"}, "actions: expected the played, eligible and baseline actions"),
    ({"eligible": ["tea"]}, "eligible: expected actions that include the played action"),
    ({"eligible": ["cup", "tea", "tea"]}, "eligible: expected one or more of the actions, without duplicates"),
    ({"x": 3}, "x: expected features by name, a list of numbers"),
]


@pytest.mark.parametrize(("fields", "reason"), BAD_ROWS)
def test_invalid_row_is_counted(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    log = open_log(
        write(tmp_path / "log.jsonl", [*ROWS, {**ROWS[0], "id": "v3", **fields}]), mapping(), on_bad_row="skip"
    )
    assert [one for batch in log.batches() for one in batch.ids] == ["v1", "v2"]
    assert [name.startswith(reason) for name in log.skipped] == [True]


@pytest.mark.parametrize(
    "fields",
    [
        {"label": "action"}, {"classes": ["tea", "cup"]}, {"actions": None, "actions_max": 3}, {"action": None},
        {"actions": None, "action_features": {"numeric": ["price"]}}, {"features": {"numeric": ["x.age"]}},
        {"actions_max": 51},
    ],
)  # fmt: skip
def test_contradictory_mapping_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(DatasetError):
        mapping(**fields)


def test_keys_of_ids_are_in_x(tmp_path: Path) -> None:
    log = open_log(write(tmp_path / "log.jsonl", ROWS), mapping())
    (batch,) = log.batches()
    assert log.blocks is not None
    assert batch.offered is not None
    for row in range(2):
        entries = slice(*batch.offsets[row : row + 2])
        x = Features(batch.indices[entries], batch.values[entries])
        assert [log.blocks.key_at(x, place) for place in range(3)][: len(batch.offered.of(row))] == [
            key_of(name) for name in batch.offered.of(row)
        ]


def personalizer(features: list[dict[str, Any]], *actions: list[dict[str, Any]]) -> dict[str, Any]:
    """A decision as in the logs of Azure Personalizer."""
    listed = [{"_tag": f"item-{k}", "i": {"constant": 1, "id": f"item-{k}"}, "j": one} for k, one in enumerate(actions)]
    played = {"a": list(range(1, len(actions) + 1)), "p": [1 / len(actions)] * len(actions)}
    return {**DECISION, **played, "c": {"FromUrl": features, "_multi": listed}}


def test_features_in_logs_of_personalizer_have_the_names_of_requests(tmp_path: Path) -> None:
    features: list[dict[str, Any]] = [{"hour": 9, "user": {"pro": True, "city": "rome"}}, {"_url": "/7"}]
    actions: list[list[dict[str, Any]]] = [[{"taste": "sweet"}, {"grams": [4, 8], "tags": ["new", "hot"]}], []]
    log = dsjson(tmp_path, personalizer(features, *actions), encoding=ENCODING)
    listed = [{"id": f"item-{k}", "features": one} for k, one in enumerate(actions)]
    context = rank_request({"eventId": "e1", "contextFeatures": features, "actions": listed}).context
    (batch,) = log.batches()
    assert log.action_encoder is not None
    assert log.blocks is not None
    x, of_actions = log.blocks.split(Features(batch.indices, batch.values))
    expected = [log.encoder.encode(context["x"]), *(log.action_encoder.encode(one["x"]) for one in context["actions"])]
    for found, (own, _) in zip([x, *of_actions], expected, strict=True):
        assert found.indices.tolist() == own.indices.tolist()
        assert found.values.tolist() == own.values.tolist()
    assert batch.offered is not None
    assert batch.offered.of(0) == ["item-0", "item-1"]


def test_features_of_personalizer_that_no_request_can_have_are_invalid(tmp_path: Path) -> None:
    lines = personalizer([{"hour": 9}], [], []), {**personalizer([{"hour": [[1]]}], [], []), "EventId": "e2"}
    log = dsjson(tmp_path, *lines, on_bad_row="skip")
    assert sum(len(batch.ids) for batch in log.batches()) == 1
    assert list(log.skipped) == ["c: expected features as in requests"]


def test_encoding_of_another_kind_of_log_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DatasetError):
        dsjson(tmp_path, DECISION, encoding=HASHED)
    table = write(tmp_path / "log.jsonl", ROWS)
    with pytest.raises(DatasetError):
        open_log(table, mapping(), encoding=ENCODING)


@pytest.mark.parametrize("levels", [300, 900])
def test_deeply_nested_action_is_invalid(tmp_path: Path, levels: int) -> None:
    deep = orjson.dumps(changed({"_multi": [{"x": 1}, {"n": {}}, {}]}))
    deep = deep.replace(b'"n":{}', b'"n":' + b'{"x":' * levels + b"1" + b"}" * levels)
    (tmp_path / "log").write_bytes(orjson.dumps(DECISION) + b"\n" + deep + b"\n")
    log = open_log(tmp_path / "log", on_bad_row="skip")
    assert sum(len(batch.ids) for batch in log.batches()) == 1
