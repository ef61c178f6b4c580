"""Tables: for the terminal, Markdown, LaTeX and CSV.

All names in them come from users, so each format escapes what would not be shown as it stands.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from assay.core.results.outcomes import Leaderboard, LeaderboardRow, ScoreTable, p_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from assay.core.benchmark import Metric
    from assay.core.results import Results

UNKNOWN = "–"
MAX_NOTES = 8


@dataclass(frozen=True)
class Table:
    """Text in cells.

    Attributes
    ----------
    header : list of str
    rows : list of lists of str
    numeric : list of bool
        Columns set flush right.
    strong : set of (int, int)
        Cells (row, column) set in bold where a format can.
    records : list of dict
        The same in full precision, for CSV.
    """

    header: list[str]
    rows: list[list[str]]
    numeric: list[bool]
    strong: set[tuple[int, int]] = field(default_factory=set)
    records: list[dict[str, Any]] = field(default_factory=list)

    def to_text(self) -> str:
        """Columns aligned with spaces."""
        lines = [[printable(cell) for cell in row] for row in [self.header, *self.rows]]
        widths = [max(len(row[j]) for row in lines) for j in range(len(self.header))]
        aligned = [
            [cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, self.numeric)]
            for row in lines
        ]
        return "\n".join("  ".join(row).rstrip() for row in aligned)

    def to_markdown(self) -> str:
        """A pipe table."""
        rows = [
            [f"**{markdown_text(c)}**" if (i, j) in self.strong else markdown_text(c) for j, c in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
        rule = ["---:" if right else "---" for right in self.numeric]
        lines = [[markdown_text(c) for c in self.header], rule, *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def to_latex(self, caption: str = "") -> str:
        """A table environment with the rules of booktabs."""
        rows = [
            [rf"\textbf{{{latex_text(c)}}}" if (i, j) in self.strong else latex_text(c) for j, c in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
        lines = [r"\begin{table}", r"\centering"]
        if caption:
            lines.append(rf"\caption{{{latex_text(caption)}}}")
        lines.append(rf"\begin{{tabular}}{{{''.join('r' if right else 'l' for right in self.numeric)}}}")
        lines += [r"\toprule", " & ".join(latex_text(c) for c in self.header) + r" \\", r"\midrule"]
        lines += [" & ".join(row) + r" \\" for row in rows]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def to_csv(self) -> str:
        """`records` with a header line; an empty field where a number is unknown."""
        return _csv(self.records)


def leaderboard_table(board: Leaderboard) -> Table:
    """A leaderboard as text; bold are the first and those not told apart from it."""
    several = len(board.tasks) > 1
    header = ["", "method", metric_heading(board.metric), "95% interval", "against the first"]
    header += ["mean rank"] if several else []
    header += ["runs", "failed", "seconds"]
    rows, strong, records = [], set(), []
    for i, row in enumerate(board.rows):
        cells = [
            UNKNOWN if row.rank is None else str(row.rank),
            row.method + (" *" if row.gaps else ""),
            value_text(row.mean, board.metric),
            interval_text(row.low, row.high, board.metric),
            against_first(row),
        ]
        cells += [value_text(row.mean_rank, ".2f")] if several else []
        cells += [str(row.runs), str(row.failed), seconds_text(row.wall_seconds)]
        rows.append(cells)
        if row.rank is not None and row.apart is False:
            strong.add((i, 2))
        records.append(
            {
                "rank": row.rank,
                "method": row.method,
                "metric": board.metric.name,
                "mean": row.mean,
                "low": row.low,
                "high": row.high,
                "apart_from_first": row.apart,
                "p_holm": row.p,
                "mean_rank": row.mean_rank,
                "tasks": row.tasks,
                "runs": row.runs,
                "failed": row.failed,
                "wall_seconds": row.wall_seconds,
                "gaps": "; ".join(map(str, row.gaps)),
            }
        )
    numeric = [True, False, True, True, False, *([True] if several else []), True, True, True]
    return Table(header, rows, numeric, strong, records)


def score_table(scores: ScoreTable) -> Table:
    """Tasks x methods as text; bold are the best of a task and those not told apart from it."""
    rows, strong = [], set()
    for t, task in enumerate(scores.tasks):
        cells = [task]
        for m in range(len(scores.methods)):
            half = (scores.high[t, m] - scores.low[t, m]) / 2
            text = value_text(scores.mean[t, m], scores.metric)
            cells.append(text if math.isnan(half) else f"{text} ± {half:{scores.metric.format}}")
            if scores.n[t, m] and scores.apart[t, m] == 0:
                strong.add((t, m + 1))
        rows.append(cells)
    header = [metric_heading(scores.metric), *scores.methods]
    return Table(header, rows, [False, *[True] * len(scores.methods)], strong, _score_records(scores))


def score_csv(scores: ScoreTable) -> str:
    """A line a cell."""
    return _csv(_score_records(scores))


def _score_records(scores: ScoreTable) -> list[dict[str, Any]]:
    apart = {1: True, 0: False, -1: None}
    return [
        {
            "task": task,
            "method": method,
            "metric": scores.metric.name,
            "mean": float(scores.mean[t, m]),
            "low": float(scores.low[t, m]),
            "high": float(scores.high[t, m]),
            "runs": int(scores.n[t, m]),
            "failed": int(scores.failed[t, m]),
            "apart_from_best": apart[int(scores.apart[t, m])],
        }
        for t, task in enumerate(scores.tasks)
        for m, method in enumerate(scores.methods)
    ]


def _csv(records: Sequence[dict[str, Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if records:
        writer.writerow(records[0])
    for record in records:
        writer.writerow("" if v is None or (isinstance(v, float) and math.isnan(v)) else v for v in record.values())
    return buffer.getvalue()


# -- values as text --------------------------------------------------------------------------------------------------


def metric_heading(metric: Metric) -> str:
    """Title, unit, and the direction that is better."""
    unit = f" ({metric.unit})" if metric.unit else ""
    return f"{metric.title}{unit} {'↑' if metric.higher_is_better else '↓'}"


def value_text(value: float, metric: Metric | str) -> str:
    """A value in the metric's format, a dash where it is unknown."""
    return UNKNOWN if math.isnan(value) else format(value, metric if isinstance(metric, str) else metric.format)


def interval_text(low: float, high: float, metric: Metric) -> str:
    """Both ends of an interval."""
    return UNKNOWN if math.isnan(low) else f"{low:{metric.format}} to {high:{metric.format}}"


def against_first(row: LeaderboardRow, *, short: bool = False) -> str:
    """Whether a method is told apart from the first, in a few words."""
    if row.rank is None:
        return "few tasks" if row.tasks else "no value"
    if row.apart is None:
        return "too few pairs"
    if math.isnan(row.p):
        return ""
    if short:
        return "worse" if row.apart else "not apart"
    return p_text(row.p) if row.apart else f"not apart, {p_text(row.p)}"


def seconds_text(seconds: float) -> str:
    """Seconds with three digits.

    >>> seconds_text(0.01234), seconds_text(1234.5)
    ('0.0123', '1234')
    """
    if math.isnan(seconds):
        return UNKNOWN
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"


def printable(text: str) -> str:
    """Text without control characters, which could move a terminal's cursor or change its colours.

    >>> printable("a\\x1b[31mb")
    'a�[31mb'
    """
    return "".join(c if c.isprintable() else "�" for c in text)


def markdown_text(text: str) -> str:
    """Text that Markdown and the HTML in it show as it stands.

    >>> markdown_text("<b> a_b *c* | d")
    '&lt;b&gt; a_b \\\\*c\\\\* \\\\| d'
    """
    text = " ".join(printable(line) for line in text.splitlines())
    text = re.sub(r"([\\`*|\[\]~#])|(?<!\w)_|_(?!\w)", lambda match: "\\" + match.group(), text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_LATEX = {
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--",
    "…": r"\ldots{}", '"': r"\textquotedbl{}",
}  # fmt: skip


def latex_text(text: str) -> str:
    """Text with LaTeX's special characters escaped.

    >>> latex_text("50% of_all {x}")
    '50\\\\% of\\\\_all \\\\{x\\\\}'
    """
    return "".join(_LATEX.get(c, c) for c in " ".join(printable(line) for line in text.splitlines()))


# -- the terminal ----------------------------------------------------------------------------------------------------


def show(
    results: Results, console: Console, metric: str | None = None, task: str | Sequence[str] | None = None
) -> None:
    """Print the leaderboard: the verdict, methods best first with their intervals, failures with reasons.

    Parameters
    ----------
    results : Results
    console : rich.console.Console
    metric : str, optional
        Default: the benchmark's first.
    task : str or sequence of str, optional
        Only these tasks.

    Raises
    ------
    UnknownNameError
    """
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    board = results.leaderboard(metric, task)
    if not board.rows:
        console.print(Text(printable(board.verdict)))
        return
    title = printable(board.benchmark.title or board.benchmark.name)
    where = board.tasks[0] if len(board.tasks) == 1 else f"{len(board.tasks)} tasks"
    console.print(Text.assemble((title, "bold"), f"  {printable(where)}, {sum(r.runs for r in board.rows)} runs"))

    table = leaderboard_table(board)
    wide = console.width >= 100
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    drop = set() if wide else {"mean rank", "seconds"}
    if not wide:
        for row, cells in zip(board.rows, table.rows):
            cells[table.header.index("against the first")] = against_first(row, short=True)
    kept = [j for j, name in enumerate(table.header) if name not in drop]
    for j in kept:
        side: Literal["left", "right"] = "right" if table.numeric[j] else "left"
        # Only methods and headings may be broken over lines.
        least = None if j == 1 else max(len(cells[j]) for cells in table.rows)
        most = max(least or 0, 11) if j in (2, 4) and not wide else None
        heading = Text(printable(table.header[j]))
        grid.add_column(heading, justify=side, overflow="fold", min_width=least, max_width=most)
        if wide and j == 3:
            grid.add_column("", no_wrap=True)
    plots = _interval_plots(board.rows, 25)
    failed_column = table.header.index("failed")
    for i, (row, cells) in enumerate(zip(board.rows, table.rows)):
        line: list[Text] = []
        leading = row.rank is not None and row.apart is False
        for j in kept:
            style = "bold" if leading and j in (1, 2) else "red" if j == failed_column and row.failed else ""
            line.append(Text(printable(cells[j]), style=style))
            if wide and j == 3:
                line.append(Text(plots[i], style="green" if leading else "cyan"))
        grid.add_row(*line)
    console.print(grid)
    console.print(Text(printable(board.verdict), style="bold"))
    for note in board.notes[:MAX_NOTES]:
        console.print(Text(printable(note), style="red" if "failed" in note else "yellow"))
    if len(board.notes) > MAX_NOTES:
        console.print(Text(f"{len(board.notes) - MAX_NOTES} more notes; the report page has them all", style="yellow"))


def _interval_plots(rows: Iterable[LeaderboardRow], width: int) -> list[str]:
    """A line of characters for each row: the mean as a dot within its interval, all on one scale."""
    rows = list(rows)
    ends = [v for r in rows for v in (r.low, r.mean, r.high) if math.isfinite(v)]
    if not ends:
        return [""] * len(rows)
    low, span = min(ends), (max(ends) - min(ends)) or 1.0

    def column(value: float) -> int:
        return round((value - low) / span * (width - 1))

    lines = []
    for r in rows:
        line = [" "] * width
        if math.isfinite(r.low):
            for c in range(column(r.low), column(r.high) + 1):
                line[c] = "─"
        if math.isfinite(r.mean):
            line[column(r.mean)] = "●"
        lines.append("".join(line))
    return lines
