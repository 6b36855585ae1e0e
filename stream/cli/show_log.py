"""Output of `onebit data show` for logs."""

from pathlib import Path

from rich.markup import escape

from producers.datasets.log import remarks_of
from producers.datasets.logs.guess import to_toml
from producers.datasets.logs.reading import LogFile
from stream.app.log_summary import LogSummary, fields_of, rows_of, save_features, summarise_log
from stream.app.plan import uneven_warning
from stream.cli.console import out, print_json
from stream.wire.named_features import Scaling

_CLASSES_SHOWN = 20


def show_log(
    path: str,
    mapping_given: str | None,
    reward_above: float | None,
    features_file: Path | None,
    *,
    scale: Scaling,
    as_json: bool,
) -> None:
    """Print a summary of a log, with the number of invalid rows."""
    shown = summarise_log(path, mapping_given, reward_above, scale)
    if features_file is not None:
        save_features(shown, features_file)
    if as_json:
        print_json(fields_of(path, shown))
        return
    out.print(f"[bold]{escape(path)}[/]: {shown.format}", soft_wrap=True)
    if shown.columns:
        listed = ", ".join(column or "''" for column in shown.columns)
        out.print(f"{len(shown.columns)} columns: {escape(listed)}", soft_wrap=True, highlight=False)
    if shown.guessed is not None:
        out.print("guessed mapping; correct it, save it, and use it with --map:", highlight=False)
        out.print(escape(to_toml(shown.guessed)), soft_wrap=True, highlight=False)
    if shown.log is not None:
        _print_rows(shown, shown.log)


def _print_rows(shown: LogSummary, log: LogFile) -> None:
    rows, features = "row" if shown.rows == 1 else "rows", "feature" if log.n_features == 1 else "features"
    out.print(f"{shown.rows:,} valid {rows}, {log.n_features:,} {features}")
    for line in remarks_of(log):
        out.print(escape(line), soft_wrap=True, highlight=False)
    some = ", ".join(log.class_names[:_CLASSES_SHOWN]) + (", ..." if len(log.class_names) > _CLASSES_SHOWN else "")
    out.print(f"{len(log.class_names)} classes: {escape(some)}", soft_wrap=True, highlight=False)
    if uneven := uneven_warning(log.uneven):
        out.print(escape(uneven), soft_wrap=True, highlight=False)
    for note in log.notes:
        out.print(escape(note), soft_wrap=True, highlight=False)
    for row in rows_of(shown.first, log):
        line = "  ".join(f"{key} {value}" for key, value in row.items() if value is not None and key != "features")
        out.print(escape(line), soft_wrap=True, highlight=False)
        out.print(f"  [dim]{escape(str(row['features']))}[/]", soft_wrap=True, highlight=False)
