"""Vowpal Wabbit's log formats."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from producers.datasets.base import DatasetError
from producers.datasets.logs.formats import Format
from producers.datasets.logs.parsed import ACTION_MAX
from producers.datasets.logs.reading import LogFile, open_log
from tests.producers.logs.rows import mapping, plain

DECISION: dict[str, Any] = {
    "_label_cost": -1, "_label_probability": 0.8, "_label_Action": 2, "_labelIndex": 1,
    "o": [{"v": 1.0, "EventId": "e1", "ActionTaken": False}], "Timestamp": "2021-02-04T16:31:29.2460000Z",
    "Version": "1", "EventId": "e1", "a": [2, 1, 3], "p": [0.8, 0.1, 0.1], "VWState": {"m": "x"},
    "c": {
        "user": {"major": "engineering", "age": 21, "new": True}, "hour": 9, "_text": "Two words",
        "tags": [{"t": "a"}, {"t": "b"}], "vector": [0.5, 0, 2], "_synthetic": False,
        "_multi": [{"_tag": "x"}, {"_tag": "y"}, {"_tag": "z"}],
    },
}  # fmt: skip


def dsjson(tmp_path: Path, *lines: dict[str, Any], **options: Any) -> tuple[LogFile, list[dict[str, Any]]]:
    path = tmp_path / "decisions"
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    log = open_log(path, **options)
    return log, plain(log.batches())


def changed(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in {**DECISION, "EventId": "e2", **fields}.items() if value != "left out"}


def test_dsjson_decision_is_read(tmp_path: Path) -> None:
    log, rows = dsjson(tmp_path, DECISION)
    assert log.format is Format.VW_DSJSON
    assert log.class_names == ("1", "2", "3")
    x = rows[0].pop("x")
    assert rows == [
        {"id": "e1", "decided_at_ms": 1_612_456_289_246, "actions": 1, "propensities": 0.8, "rewards": 1},
    ]  # fmt: skip
    expected, _ = log.encoder.encode(
        {"user.major": "engineering", "user.age": 21, "user.new": 1, "hour": 9, "_text": "words two", "vector[0]": 0.5,
         "vector[2]": 2}
    )  # fmt: skip
    tags = log.encoder.indices_of("tags.t", ["a", "b"]).tolist()
    assert x == dict(zip(expected.indices.tolist(), expected.values.tolist(), strict=True)) | dict.fromkeys(tags, 1.0)
    assert not any("_multi" in name or "_synthetic" in name for name in log.encoder.names)
    assert any("_multi" in note for note in log.notes)


def test_line_without_a_cost_has_no_outcome(tmp_path: Path) -> None:
    _, rows = dsjson(tmp_path, DECISION, changed(_label_cost="left out"), changed(_label_cost=0, EventId="e3"))
    assert [row.get("rewards") for row in rows] == [1, None, 0]


def test_outcome_without_a_decision_is_counted(tmp_path: Path) -> None:
    dangling = {"RewardValue": 1.0, "EnqueuedTimeUtc": "2021-02-04T16:31:29Z", "EventId": "e0"}
    log, rows = dsjson(tmp_path, dangling, DECISION)
    assert [row["id"] for row in rows] == ["e1"]
    assert log.skipped == {"an outcome without a decision": 1}
    assert log.first_skipped == {"an outcome without a decision": "line 1"}


def test_label_index_replaces_missing_fields_a_and_p(tmp_path: Path) -> None:
    _, rows = dsjson(tmp_path, DECISION, changed(a="left out", p="left out"))
    assert [(row["actions"], row["propensities"]) for row in rows] == [(1, 0.8), (1, 0.8)]


def test_every_available_action_is_a_class(tmp_path: Path) -> None:
    log, _ = dsjson(tmp_path, DECISION, changed(a=[1, 11], p=[0.5, 0.5]))
    assert log.class_names == tuple(map(str, range(1, 12)))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"a": [0, 1, 2]}, f"a: expected a list of actions from 1 to {ACTION_MAX}"),
    ({"a": [1, 99_999_999_999, 2]}, f"a: expected a list of actions from 1 to {ACTION_MAX}"),
    ({"a": []}, f"a: expected a list of actions from 1 to {ACTION_MAX}"),
    ({"p": [1.5, 0, 0]}, "p: expected one probability per action, the first in (0, 1]"),
    ({"p": [0.0, 1, 0]}, "p: expected one probability per action, the first in (0, 1]"),
    ({"p": [0.5]}, "p: expected one probability per action, the first in (0, 1]"),
    ({"_label_cost": "x"}, "_label_cost: expected a number"),
    ({"_label_cost": -0.5}, "reward: expected 0 or 1 (or set reward_above, or rewards=graded)"),
    ({"c": []}, "c: expected an object with the context"),
    ({"EventId": "left out"}, "EventId: expected the decision's id"),
    ({"EventId": "e1"}, "EventId: expected a unique id"),
    ({"Timestamp": "2020-02-04T16:31:29Z"}, "timestamp: expected non-decreasing times; sort the rows by time"),
]


@pytest.mark.parametrize(("fields", "reason"), BAD)
def test_invalid_dsjson_line_is_reported_or_counted(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    log, rows = dsjson(tmp_path, DECISION, changed(**fields), changed(EventId="e3"), on_bad_row="skip")
    assert log.skipped == {reason: 1}
    assert [row["id"] for row in rows] == ["e1", "e3"]
    with pytest.raises(DatasetError) as caught:
        dsjson(tmp_path, DECISION, changed(**fields))
    assert f"decisions, line 2, {reason}; got " in str(caught.value)


def test_deeply_nested_context_is_invalid(tmp_path: Path) -> None:
    deep = orjson.dumps(changed(c={})).replace(b'"c":{}', b'"c":' + b'{"x":' * 900 + b"{}" + b"}" * 900)
    (tmp_path / "log").write_bytes(orjson.dumps(DECISION) + b"\n" + deep + b"\n")
    log = open_log(tmp_path / "log", on_bad_row="skip")
    assert len(plain(log.batches())) == 1
    ((reason, count),) = log.skipped.items()
    assert (reason[:2], count) == ("c:", 1)


TEXT = """\
2:-1:0.25 |user major=engineering age:21 city:paris |time:2 hour:4.5
1 2 3:0:0.5 4 'some-tag| a a:2

1:0.0:1 tag| b
|user age:1
"""


def test_contextual_bandit_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "log.vw").write_text(TEXT)
    log = open_log(tmp_path / "log.vw")
    rows = plain(log.batches())
    assert log.format is Format.VW_TEXT
    assert log.class_names == ("1", "2", "3", "4")
    played = [(row["id"], row.get("actions"), row.get("propensities"), row.get("rewards")) for row in rows]
    assert played == [
        ("log-000000", 1, 0.25, 1),
        ("log-000001", 2, 0.5, 0),
        ("log-000002", 0, 1.0, 0),
        ("log-000003", None, None, None),
    ]
    indices = ((name, one.indices or {}) for name, one in log.encoder.names.items())
    names = {index: f"{name}^{value}" for name, known in indices for value, index in known.items()}
    assert [{names[index]: value for index, value in row["x"].items()} for row in rows] == [
        {"user^major=engineering": 1.0, "user^age": 21.0, "user^city=paris": 1.0, "time^hour": 9.0},
        {"default^a": 3.0},
        {"default^b": 1.0},
        {"user^age": 1.0},
    ]


BAD_LABEL = (
    "label: expected labels such as 2:0:0.25 (action:cost:probability) before the |, with actions from 1 to "
    + str(ACTION_MAX)
)
BAD_TEXT = [
    ("1:0:0 | a", "label: expected a cost, and a probability in (0, 1]"),
    ("1:x:0.5 | a", "label: expected a cost, and a probability in (0, 1]"),
    ("1:0.5 | a", BAD_LABEL),
    ("0:0:0.5 | a", BAD_LABEL),
    ("99999999999:0:0.5 | a", BAD_LABEL),
    ("1:0:0.5 2:0:0.5 | a", BAD_LABEL),
    ("1:-0.5:0.5 | a", "reward: expected 0 or 1 (or set reward_above, or rewards=graded)"),
    ("1:0:0.5", "line: expected UTF-8 text with a | before the features"),
    ("1:0:0.5 |n:x a", "namespace n: expected a number after the colon"),
    ("1:0:0.5 | a:1e308 a:1e308", "features: expected a finite sum of the numbers with the same index"),
    ("1:0:0.5 |n:-1e200 a:1e200 |", "features: expected a finite sum of the numbers with the same index"),
    ("1:0:0.5 |n:1e200 a:1e200 a:-1e200", "features: expected a finite sum of the numbers with the same index"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_TEXT)
def test_invalid_text_line_is_reported_or_counted(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "log.vw"
    path.write_text(TEXT * 1_000 + f"{line}\n")  # after the part of the file that determines the format
    log = open_log(path, on_bad_row="skip")
    assert len(plain(log.batches())) == 4_000
    assert log.skipped == {reason: 1}
    with pytest.raises(DatasetError) as caught:
        plain(open_log(path).batches())
    assert f"log, line 5001, {reason}; got " in str(caught.value)


def test_huge_finite_numbers_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.vw"
    path.write_text(TEXT + "1:0:0.5 | a:1e308 a:-1e308 b:1e307\n")
    assert sorted(plain(open_log(path).batches())[-1]["x"].values()) == [0.0, 1e307]


def test_vw_formats_reject_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "log.vw").write_text(TEXT)
    with pytest.raises(DatasetError, match="mapping"):
        open_log(tmp_path / "log.vw", mapping())


def test_actions_listed_in_a_line_are_the_eligible_ones(tmp_path: Path) -> None:
    path = tmp_path / "log.vw"
    path.write_text("1:0:0.5 3 |u a\n4:-1:0.25 |u a\n2 1:-1:0.5 3 4 |u a\n2 3 |u b\n")
    (batch,) = open_log(path).batches()
    assert batch.eligible is not None
    found = [batch.eligible.of(row) for row in range(4)]
    assert [None if one is None else one.tolist() for one in found] == [[0, 2], None, None, [1, 2]]


def test_actions_of_dsjson_are_the_eligible_ones(tmp_path: Path) -> None:
    log, _ = dsjson(tmp_path, changed(a=[3, 1], p=[0.5, 0.5]), changed(EventId="e3", a=[4, 2, 3, 1], p=[0.25] * 4))
    eligible = [batch.eligible for batch in log.batches()]
    assert [None if one is None else one.classes.tolist() for one in eligible] == [[0, 2], []]


@pytest.mark.parametrize("tag", ["7", "2:0:0.5", "3:-1:0.25", "x", "'x "])
def test_word_that_touches_the_bar_is_a_tag(tmp_path: Path, tag: str) -> None:
    path = tmp_path / "log.vw"
    path.write_text(f"1:0:0.5 2 {tag}|u a\n2:-1:0.5 1 |u b\n")
    log = open_log(path)
    assert log.class_names == ("1", "2")
    assert [(row["actions"], row["rewards"]) for row in plain(log.batches())] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("number", ["nan", "-inf", "Infinity", "1e999", "NaN", "-1e400"])
def test_number_that_is_not_finite_is_reported_in_text(tmp_path: Path, number: str) -> None:
    path = tmp_path / "log.vw"
    path.write_text(f"1:0:0.5 |u price:2 city:paris\n2:-1:0.5 |u price:{number}\n2:-1:0.5 |u price:1 city:rome\n")
    log = open_log(path, on_bad_row="skip")
    assert len(plain(log.batches())) == 2
    assert log.skipped == {"u: price: expected a finite number after the colon": 1}
    assert set(log.encoder.names["u"].indices or ()) == {"price", "city=paris", "city=rome"}


@pytest.mark.parametrize(
    "fields",
    [
        {"_skipLearn": True},
        {"DeferredAction": True},
        {"DeferredAction": True, "o": [{"EventId": "e2", "ActionTaken": False}]},
    ],
)
def test_decision_that_was_not_shown_is_left_out(tmp_path: Path, fields: dict[str, Any]) -> None:
    hidden = changed(EventId="e9", a=[9, 2], p=[0.5, 0.5], _label_cost=0, **fields)
    shown = changed(EventId="e3", DeferredAction=True, o=[{"EventId": "e3", "ActionTaken": True}])
    log, rows = dsjson(tmp_path, DECISION, hidden, shown, changed(EventId="e4", DeferredAction=True, _skipLearn=False))
    assert [row["id"] for row in rows] == ["e1", "e3", "e4"]
    assert list(log.skipped.values()) == [1]
    assert log.class_names == ("1", "2", "3")


def test_different_drop_probabilities_are_refused_by_name(tmp_path: Path) -> None:
    hidden = changed(EventId="e8", _skipLearn=True, pdrop=0.5)
    same = [changed(EventId=f"e{k}", pdrop=0.75) for k in range(3)]
    assert len(dsjson(tmp_path, *same[:2], hidden, same[2])[1]) == 3
    for on_bad_row in ("stop", "skip"):
        for other in (changed(EventId="e9"), changed(EventId="e9", pdrop=0.1)):
            with pytest.raises(DatasetError, match=r"line 4, pdrop: expected 0\.75"):
                dsjson(tmp_path, *same, other, on_bad_row=on_bad_row)


@pytest.mark.parametrize("pdrop", [1.0, -0.5, "0.5", None])
def test_invalid_drop_probability_is_reported(tmp_path: Path, pdrop: Any) -> None:
    log, rows = dsjson(tmp_path, DECISION, changed(pdrop=pdrop), changed(EventId="e3"), on_bad_row="skip")
    assert (len(rows), log.skipped) == (2, {"pdrop: expected a probability in [0, 1)": 1})


@pytest.mark.parametrize("odd", ["NaN", "n/a", "Infinity", ""])
@pytest.mark.parametrize("place", [0, 70, 199])
def test_one_string_does_not_make_a_feature_categorical(tmp_path: Path, odd: str, place: int) -> None:
    lines = [changed(EventId=f"e{k}", a=[1, 2], p=[0.5, 0.5], c={"price": k + 1.5}) for k in range(200)]
    lines[place] = changed(EventId="odd", a=[2, 9], p=[0.5, 0.5], c={"price": odd})
    log, rows = dsjson(tmp_path, *lines, on_bad_row="skip")
    assert log.n_features == 1
    assert len(rows) == (199 if odd else 200)
    assert log.class_names == (("1", "2") if odd else tuple(map(str, range(1, 10))))
    assert log.skipped == ({"price: expected a finite number, as in nearly all rows": 1} if odd else {})
    assert [row["x"] for row in rows if row["id"] == "e3"] == [{0: 4.5}]
    if odd:
        with pytest.raises(DatasetError, match=f"line {place + 1}, price: "):
            dsjson(tmp_path, *lines)


def test_numbers_of_a_categorical_feature_keep_their_values(tmp_path: Path) -> None:
    values = ["K1A", 90210, True, 2**53 + 1, "true", "90210.0", 90210.0]
    log, rows = dsjson(tmp_path, *(changed(EventId=f"e{k}", c={"zip": one}) for k, one in enumerate(values)))
    assert set(log.encoder.names["zip"].indices or ()) == {"K1A", "90210", "true", "9007199254740993"}
    x = [row["x"] for row in rows]
    assert x[1] == x[5] == x[6]
    assert x[2] == x[4]
    assert len({tuple(one) for one in x}) == 4
