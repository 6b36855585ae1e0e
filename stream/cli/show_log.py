"""Output of `onebit data show` for logs."""

from pathlib import Path

from rich.markup import escape

from producers.datasets.logs.guess import to_toml
from producers.datasets.logs.reading import LogFile
from producers.datasets.logs.stored import remarks_of
from stream.app.log_summary import LogSummary, fields_of, rows_of, save_features, summarise_log
from stream.app.plan import uneven_warning
from stream.cli.console import out, print_json, print_line
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
        print_line(f"{len(shown.columns)} columns: {escape(listed)}")
    if shown.guessed is not None:
        out.print("guessed mapping; correct it, save it, and use it with --map:", highlight=False)
        print_line(escape(to_toml(shown.guessed)))
    if shown.log is not None:
        _print_rows(shown, shown.log)


def _print_rows(shown: LogSummary, log: LogFile) -> None:
    rows, features = "row" if shown.rows == 1 else "rows", "feature" if log.n_features == 1 else "features"
    out.print(f"{shown.rows:,} valid {rows}, {log.n_features:,} {features}")
    for line in remarks_of(log):
        print_line(escape(line))
    some = ", ".join(log.class_names[:_CLASSES_SHOWN]) + (", ..." if len(log.class_names) > _CLASSES_SHOWN else "")
    print_line(f"{len(log.class_names)} classes: {escape(some)}")
    if uneven := uneven_warning(log.uneven):
        print_line(escape(uneven))
    for note in log.notes:
        print_line(escape(note))
    for row in rows_of(shown.first, log):
        line = "  ".join(f"{key} {value}" for key, value in row.items() if value is not None and key != "features")
        print_line(escape(line))
        print_line(f"  [dim]{escape(str(row['features']))}[/]")
