"""``assay streams ...``: a table of one's own, without the protocol around it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from assay.streams.stream import HaphazardStream

app = typer.Typer(no_args_is_help=True, help="Online learning when features come and go.")

Source = Annotated[
    str, typer.Argument(help="A file (.csv, .parquet, .arff, .libsvm; compressed too), or the name of a public stream.")
]
Label = Annotated[str | None, typer.Option(help="Column of the label.")]
Drop = Annotated[list[str] | None, typer.Option(help="Column to leave out, again for more.")]
OrderBy = Annotated[str | None, typer.Option(help="Sort the rows by this column first.")]
Category = Annotated[
    list[str] | None, typer.Option(help="Column of categories, again for more.  [default: all text columns]")
]
RegimeOption = Annotated[
    str, typer.Option("--regime", help="Put the table under a regime, such as sudden or obstruct-50.")
]
Seed = Annotated[int, typer.Option(help="Seed of mask and model.")]


def _open(source: str, label: str | None, drop: Any, order_by: str | None, categorical: Any) -> HaphazardStream:
    from assay.streams.data import DATASETS, load
    from assay.streams.errors import StreamError
    from assay.streams.readers import from_arff, from_csv, from_libsvm, from_parquet

    path = Path(source)
    if source in DATASETS:
        return load(source)
    if not path.exists():
        raise StreamError(
            f"{source!r} is neither a file nor a public stream; the streams are {', '.join(sorted(DATASETS))}"
        )
    suffixes = "".join(path.suffixes).lower()
    if ".libsvm" in suffixes or ".svm" in suffixes:
        return from_libsvm(path)
    if label is None:
        raise StreamError(f"say which column of {path} is the label: --label NAME")
    options: dict[str, Any] = {"id_columns": drop or (), "order_by": order_by, "categorical": categorical or None}
    reader = from_parquet if ".parquet" in suffixes else from_arff if ".arff" in suffixes else from_csv
    return reader(path, label, **options)


@app.command()
def run(
    source: Source,
    label: Label = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Model, again for more; 'olvf(C=1)' sets parameters.")
    ] = None,
    normalizer: Annotated[
        str, typer.Option(help="none, zscore, minmax, mean, decimal, unit, robust or rank.")
    ] = "zscore",
    drop: Drop = None,
    order_by: OrderBy = None,
    categorical: Category = None,
    regime: RegimeOption = "intrinsic",
    seed: Seed = 0,
    label_delay: Annotated[int, typer.Option(min=0, help="Rows until a label arrives.")] = 0,
    metric: Annotated[list[str] | None, typer.Option(help="Metric, again for more.  [default: the main ones]")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for scores (Parquet), figures (JSON) and the checkpoint.")
    ] = None,
) -> None:
    """Predict each row before it is learned, and say how well that went."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

    from assay.streams.benchmark import benchmark
    from assay.streams.protocol import run as run_stream

    stream = _open(source, label, drop, order_by, categorical).masked(regime, seed=seed)
    names = metric or (
        ["rmse", "mae", "r2"] if stream.task == "regression" else ["balanced_accuracy", "auroc", "macro_f1", "accuracy"]
    )
    table = Table(
        title=f"{stream.name}: {stream.n_rows or '?'} rows, {stream.regime.name}", title_justify="left", box=None
    )
    for head in ("model", *names, "rows/s", "state"):
        table.add_column(head, justify="left" if head == "model" else "right", no_wrap=head == "model")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for text in model or ["majority", "masked_logistic", "olvf", "ocds"]:
            folder = "".join(c if c.isalnum() or c in "._=-" else "_" for c in text)
            made = benchmark.get_method(text).make()
            bar = progress.add_task(text, total=stream.n_rows)
            result = run_stream(
                made, stream, normalizer=normalizer, metrics=names, seed=seed, label_delay=label_delay,
                checkpoint=out / f"{folder}.checkpoint.npz" if out else None,
                report=partial(_advance, progress, bar),
            )  # fmt: skip
            progress.remove_task(bar)
            figures = [f"{result.metrics[name]:.3f}" for name in names]
            table.add_row(
                Text(text), *figures, f"{len(result.scores) / result.seconds:,.0f}", f"{result.peak_state_bytes:,} B"
            )
            if out is not None:
                result.save(out / folder)
    console = Console()
    console.print(table)
    if out is not None:
        console.print(f"\nscores and figures are in {out.resolve()}", markup=False)


@app.command()
def inspect(
    source: Source,
    label: Label = None,
    drop: Drop = None,
    order_by: OrderBy = None,
    categorical: Category = None,
    regime: RegimeOption = "intrinsic",
    seed: Seed = 0,
    top: Annotated[int, typer.Option(min=1, help="Features to show.")] = 40,
    plot: Annotated[Path | None, typer.Option(help="Also draw it into this file (.png, .pdf, .svg).")] = None,
) -> None:
    """When each feature is there, over time, and the regime that this looks like."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from assay.streams.inspect import inspect_stream

    stream = _open(source, label, drop, order_by, categorical).masked(regime, seed=seed)
    found = inspect_stream(stream, bins=24)
    console = Console()
    low, mean, high = found.per_row
    console.print(
        f"{stream.name}: {found.rows:,} rows, {len(found.features):,} features, {low} to {high} a row "
        f"(mean {mean:.1f}), {found.empty_rows:,} empty rows",
        markup=False,
    )
    if found.labels:
        counts = ", ".join(
            f"{'missing' if k is None else k}: {v:,}" for k, v in sorted(found.labels.items(), key=lambda i: -i[1])[:20]
        )
        console.print(f"labels: {counts}", markup=False)
    table = Table(box=None, pad_edge=False)
    for head in ("feature", "there", "first", "last", "run", "gap", "over time"):
        table.add_column(head, justify="left" if head in ("feature", "over time") else "right")
    for f in found.features[:top]:
        gap = "" if f.mean_gap != f.mean_gap else f"{f.mean_gap:.1f}"
        table.add_row(
            Text(str(f.name)),
            f"{f.share:.0%}",
            f"{f.first:,}",
            f"{f.last:,}",
            f"{f.mean_run:.1f}",
            gap,
            _sparks(f.over_time),
        )
    console.print(table)
    if len(found.features) > top:
        console.print(f"... and {len(found.features) - top:,} more (--top)")
    console.print(f"\nlooks like the regime {found.regime}: {found.reason}", markup=False)
    if plot is not None:
        from assay.streams.plots import plot_availability

        plot_availability(found).savefig(plot, dpi=150, bbox_inches="tight")
        console.print(f"drawn into {plot.resolve()}", markup=False)


@app.command()
def make(
    kind: Annotated[str, typer.Argument(help="linear_drift, hyperplane, rbf, higgs_like, mixed, or a public stream.")],
    output: Annotated[Path, typer.Argument(help="CSV file to write; empty cells are absent features.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows (generated streams).")] = 10_000,
    columns: Annotated[int, typer.Option(min=1, help="Columns (generated streams).")] = 20,
    regime: RegimeOption = "intrinsic",
    seed: Seed = 0,
) -> None:
    """Write a generated or masked stream as a CSV file."""
    import numpy as np
    import pandas as pd

    from assay.streams.data import DATASETS, load
    from assay.streams.errors import StreamError
    from assay.streams.generators import make_stream

    stream = (load(kind) if kind in DATASETS else make_stream(kind, rows, columns, seed).stream).masked(
        regime, seed=seed
    )
    if stream.columns is None:
        raise StreamError(f"{kind} has a growing vocabulary and does not fit a table; use it from Python")
    part = output.with_name(f".{output.name}.part")
    done = 0
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            for block, y in stream.blocks():
                X = np.full((len(block), len(stream.columns)), np.nan)
                X[np.repeat(np.arange(len(block)), np.diff(block.indptr)), block.codes] = block.values
                frame = pd.DataFrame(X, columns=[str(c) for c in stream.columns])
                frame["label"] = y
                frame.to_csv(file, index=False, header=done == 0)
                done += len(block)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    typer.echo(f"wrote {done:,} rows to {output.resolve()}")


@app.command()
def models() -> None:
    """The models, with their parameters."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from assay.streams.models.registry import MODELS, model_class

    table = Table(box=None, pad_edge=False)
    for head in ("model", "tasks", "what it is", "parameters"):
        table.add_column(head, overflow="fold")
    for name in MODELS:
        try:
            kind = model_class(name)
        except ImportError as error:
            table.add_row(name, "", Text(str(error)), "")
            continue
        tasks = "classes" + (", values" if kind.regression else "")
        params = ", ".join(f"{k}={v!r}" for k, v in kind().get_params().items() if k not in ("task", "classes"))
        table.add_row(name, tasks, Text((kind.__doc__ or "").strip().splitlines()[0]), Text(params))
    Console().print(table)


def _advance(progress: Any, bar: Any, done: float, total: float, text: str) -> None:
    progress.update(bar, completed=done)


def _sparks(shares: Any) -> str:
    bars = " ▁▂▃▄▅▆▇█"
    return "".join(bars[min(8, round(float(s) * 8)) if s > 0.001 else 0] for s in shares)
