"""Mapping files: valid and invalid fields, and guessed mappings."""

import re
from pathlib import Path
from typing import Any

import pytest

from producers.datasets.base import DatasetError
from producers.datasets.logs import csv_tables
from producers.datasets.logs.guess import guess, to_toml
from producers.datasets.logs.json_lines import tables
from producers.datasets.logs.mapping import LogMapping, mapping_of, read_mapping
from producers.datasets.logs.streams import Source
from tests.producers.logs.test_reading import as_jsonl, write

TOML = """
id = "event"
timestamp = "at"
action = "item"
reward = "click"
propensity = "p"
label = "y"
delay = "wait"
classes = ["a", 7]
[features]
numeric = ["price"]
categorical = ["country"]
text = ["title"]
"""


def test_mapping_file_is_read(tmp_path: Path) -> None:
    mapping = read_mapping(write(tmp_path, TOML.encode()))
    assert (mapping.id, mapping.classes, mapping.unit_of_delay()) == ("event", ("a", "7"), "s")
    assert mapping.columns() == ("event", "at", "item", "click", "p", "y", "wait", "price", "country", "title")


NUMERIC: dict[str, Any] = {"features": {"numeric": ["x"]}}

REJECTED: list[tuple[dict[str, Any], str]] = [
    ({"action": "a", "rewards": "r", **NUMERIC}, "unknown key rewards; did you mean reward?"),
    ({"action": "a", "zzz": "r", **NUMERIC}, "unknown key zzz; the keys are id, timestamp, action"),
    ({"action": "a", "features": {"numerical": ["x"]}}, "unknown key features.numerical; did you mean numeric"),
    ({"action": 1, **NUMERIC}, "action: Input should be a valid string; got '1'"),
    (NUMERIC, "map action or label"),
    ({"label": "y", "reward": "r", **NUMERIC}, "reward requires action: map action as well"),
    ({"label": "y", "propensity": "p", **NUMERIC}, "propensity requires action: map action as well"),
    ({"action": "a", "feedback_time": "f", **NUMERIC}, "feedback_time requires timestamp"),
    (
        {"action": "a", "timestamp": "t", "feedback_time": "f", "delay": "d", **NUMERIC},
        "map either feedback_time or delay, not both",
    ),
    ({"action": "a", "classes": ["x"], **NUMERIC}, "expected two or more distinct classes; got ['x']"),
    ({"action": "a", "classes": ["x", "x"], **NUMERIC}, "expected two or more distinct classes"),
    ({"action": "a"}, "no features: list columns"),
    ({"action": "a", "features": {"numeric": ["x"], "text": ["x"]}}, "duplicate columns: x"),
    ({"action": "a", "delay": "d", "delay_unit": "weeks", **NUMERIC}, "delay_unit: Input should be 'us', 'ms', 's'"),
]


@pytest.mark.parametrize(("fields", "message"), REJECTED)
def test_invalid_mapping_fields_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError) as caught:
        mapping_of(fields, "m.toml")
    assert str(caught.value).startswith("mapping m.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"action = ", b"\xff"])
def test_mapping_that_is_not_toml_is_rejected(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DatasetError):
        read_mapping(write(tmp_path, content))
    with pytest.raises(DatasetError):
        read_mapping(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("delay", "s"), ("delay_ms", "ms"), ("wait minutes", "m"), ("hours", "h"), ("alarms", "s"),
        ("minutes_to_buy", "m"), ("delay_min", "m"), ("hoursToReturn", "h"), ("delay_s", "s"), ("ms.until.click", "ms"),
        ("min_delay", "s"), ("min_delay_ms", "ms"), ("us_delay", "s"), ("delay_us", "us"), ("hours_delay_ms", "ms"),
        ("days_to_buy", "d"), ("delayDays", "d"),
    ],
)  # fmt: skip
def test_unit_of_a_delay_is_taken_from_the_column_name(name: str, unit: str) -> None:
    assert LogMapping(action="a", delay=name, **NUMERIC).unit_of_delay() == unit


def test_mapping_is_guessed_from_names_and_values(tmp_path: Path) -> None:
    rows = [
        {
            "Event ID": f"e{n}", "timestamp": f"2024-01-01T00:00:{n:02}Z", "item_id": n % 4, "click": n % 2,
            "propensity_score": 0.25, "delay_ms": 5, "position": 1 + n % 3, "price": n / 7, "visits": n,
            "country": "de" if n % 3 else "fr", "title": f"a text of many words {n}", "session": f"s{n}",
            "deep": {"hour": n % 7, "tags": [1]}, "Unnamed: 0": n,
        }
        for n in range(60)
    ]  # fmt: skip
    path = write(tmp_path, as_jsonl(rows))
    guessed = guess(next(tables(Source(str(path)))))
    assert guessed.fields == {
        "timestamp": "timestamp", "propensity": "propensity_score", "action": "item_id", "reward": "click",
        "delay": "delay_ms", "id": "Event ID",
        "features": {
            "numeric": ["price", "visits"], "categorical": ["position", "country", "deep.hour"], "text": ["title"],
        },
    }  # fmt: skip
    assert len(guessed.remarks) == 3
    saved = write(tmp_path, to_toml(guessed).encode(), "map.toml")
    assert read_mapping(saved) == mapping_of(guessed.fields, "guessed")


def test_fields_that_cannot_be_guessed_are_reported_as_remarks(tmp_path: Path) -> None:
    path = write(tmp_path, as_jsonl([{"propensity": 2.0, "reward": 0.5, "x": 1.5}] * 3))
    guessed = guess(next(tables(Source(str(path)))))
    assert guessed.fields == {"features": {"numeric": ["x"]}}
    assert "no column looks like the played action or the correct label" in guessed.remarks[0]
    path = write(tmp_path, as_jsonl([{"propensity": 2.0, "reward": 0.5, "x": 1.5, "action": "a"}] * 3))
    guessed = guess(next(tables(Source(str(path)))))
    assert [remark.partition(":")[0] for remark in guessed.remarks] == [
        "not all rewards are 0 or 1", "not all propensities are in (0, 1]",
    ]  # fmt: skip


def test_column_of_fractions_is_neither_action_nor_label(tmp_path: Path) -> None:
    path = write(tmp_path, b"a,y,class\n" + b"".join(b"%d.5,%d.25,%d\n" % (n, n, n % 2) for n in range(100)))
    guessed = guess(next(csv_tables.tables(Source(str(path)), None)))
    assert guessed.fields == {"label": "class", "features": {"numeric": ["a", "y"]}}


def test_guess_excludes_outcome_columns_and_tolerates_bad_rows(tmp_path: Path) -> None:
    header = "when,banner title,spend,chosen,prob,bought,minutes_to_buy,Clicked"
    lines = [
        f"2024-01-01T00:{n // 60:02}:{n % 60:02}Z,banner {n % 3},{n / 7},b{n % 4},0.25,{n % 2},{n / 9},{n % 2}"
        for n in range(400)
    ]
    lines.insert(200, "soon,banner 1,abc,b1,abc,1,2.5,0")
    path = write(tmp_path, "\n".join([header, *lines]).encode())
    guessed = guess(next(csv_tables.tables(Source(str(path)), None)))
    assert guessed.fields == {
        "timestamp": "when", "action": "chosen", "propensity": "prob", "reward": "Clicked", "delay": "minutes_to_buy",
        "features": {"numeric": ["spend"], "categorical": ["banner title"]},
    }  # fmt: skip
    assert guessed.remarks == (
        "'minutes_to_buy' is mapped as the outcome's delay; if it is known before the decision, list it as a feature",
        "not all propensities are in (0, 1]: rows with other values are invalid",
        "'bought' is omitted: its name suggests a value known only after the decision; "
        "if that is wrong, list it as a feature",
    )
    assert to_toml(guessed).endswith(
        "\n# do not list values that are known only after the decision\n[features]\n"
        'numeric = ["spend"]\ncategorical = ["banner title"]\n'
    )


def test_guess_reports_missing_headers_and_decimal_commas(tmp_path: Path) -> None:
    path = write(tmp_path, b"1,2.5,3\n4,5,6\n")
    assert [
        remark for remark in guess(next(csv_tables.tables(Source(str(path)), None))).remarks if "names" in remark
    ] == ["the column names are numbers: if the first line is data, insert a header line"]
    path = write(tmp_path, b"age;price;country;2\n1;3,5;de,at;1\n2;4;fr;1\n")
    guessed = guess(next(csv_tables.tables(Source(str(path)), None)))
    assert guessed.remarks[0] == (
        "'price': numbers with a decimal comma are read as text; use a decimal point, as in 3.5"
    )
    assert not any("names are numbers" in remark for remark in guessed.remarks)


@pytest.mark.parametrize(
    ("column", "values", "role"),
    [
        ("arm", ["x", "y"], "action"), ("picked", ["x", "y"], "action"), ("decision", ["x", "y"], "action"),
        ("probability", [0.5, 0.5], "propensity"), ("pscore", [0.5, 0.5], "propensity"),
        ("bought", [0, 1], "reward"), ("success", [True, False], "reward"), ("outcome", ["1", "0"], "reward"),
        ("click_latency_ms", [5, 7], "delay"), ("hoursToBuy", [5, None], "delay"), ("when", [1e9, 1e9], "timestamp"),
    ],
)  # fmt: skip
def test_guess_knows_many_column_names(tmp_path: Path, column: str, values: list[object], role: str) -> None:
    action = {} if role == "action" else {"action": "a"}
    path = write(tmp_path, as_jsonl([{**action, column: value, "x": 0.5} for value in values]))
    assert guess(next(tables(Source(str(path))))).fields[role] == column


def test_unusable_outcome_column_is_not_a_feature(tmp_path: Path) -> None:
    path = write(tmp_path, as_jsonl([{"action": "a", "bought": "yes", "wait_s": "long", "miles_to_shop": 1.5}] * 3))
    guessed = guess(next(tables(Source(str(path)))))
    assert guessed.fields == {"action": "action", "features": {"numeric": ["miles_to_shop"]}}
    assert [remark.partition(":")[0] for remark in guessed.remarks[1:]] == [
        "'bought' is omitted", "'wait_s' is omitted",
    ]  # fmt: skip


def test_mapping_pairs_can_be_longer_than_a_file_name() -> None:
    columns = [f"column{number}" for number in range(100)]
    mapping = read_mapping(f"action=item,reward=click,numeric={'+'.join(columns)}")
    assert list(mapping.features.numeric) == columns


def test_mapping_pairs_are_equivalent_to_a_file() -> None:
    pairs = "action=item,reward=click,propensity=p,classes=a+b,numeric=price, categorical=device+user.region"
    assert read_mapping(pairs) == mapping_of(
        {
            "action": "item", "reward": "click", "propensity": "p", "classes": ["a", "b"],
            "features": {"numeric": ["price"], "categorical": ["device", "user.region"]},
        },
        "test mapping",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "expected_message"),
    [
        ("action=item,reward", "expected KEY=COLUMN pairs; got 'reward'"),
        ("action=item,numeric=", "got 'numeric='"),
        ("action=item,action=other,numeric=x", "duplicate key action"),
        ("action=item,rewards=click,numeric=x", "unknown key rewards; did you mean reward?"),
        ("action=item", "no features: list columns"),
    ],
)
def test_invalid_mapping_pairs_are_rejected(pairs: str, expected_message: str) -> None:
    with pytest.raises(DatasetError, match=re.escape(expected_message)):
        read_mapping(pairs)
