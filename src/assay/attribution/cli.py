"""``assay attribution ...``: a table or arrays of one's own, without the protocol around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np

    from assay.attribution.metrics.result import MetricResult

app = typer.Typer(no_args_is_help=True, help="Training data attribution.")

Seed = Annotated[int, typer.Option(help="Seed of split, corruption and models.")]


@app.command()
def rank(
    data: Annotated[Path, typer.Option("--data", help="Table: .csv, .tsv or .parquet.")],
    label: Annotated[str, typer.Option("--label", help="Column of the label.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file for the rows, most suspicious first.")] = Path(
        "suspicious.csv"
    ),
    drop: Annotated[list[str] | None, typer.Option(help="Column to leave out, again for more.")] = None,
    way: Annotated[
        str, typer.Option(help="combined, out-of-fold, linear, self-influence, ekfac, gradcos or knn.")
    ] = "combined",
    regression: Annotated[
        bool | None, typer.Option("--regression/--classes", help="What the label is.  [default: by its values]")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Rows to write.  [default: all]")] = None,
    seed: Seed = 0,
) -> None:
    """Rank the rows of a table by how suspicious their label is."""
    from assay.attribution.formats import read_table
    from assay.attribution.tables import rank_rows

    table = read_table(data, label, drop=tuple(drop or ()), regression=regression)
    found = rank_rows(table, way=way, seed=seed)
    path = found.write(out, top=top)
    kind = "regression" if not table.classes else f"{len(table.classes)} classes"
    typer.echo(f"{len(table.X):,} rows, {table.X.shape[1]} features, {kind}; most suspicious first:")
    for i in found.order[:5]:
        own = table.classes[table.y[i]] if table.classes else f"{table.y[i]:.4g}"
        hint = "" if found.suggested is None else f", models that did not see it say {found._shown(found.suggested[i])}"
        typer.echo(f"  row {i}: {own}{hint}")
    typer.echo(f"wrote {path.resolve()}")


@app.command()
def bench(
    kind: Annotated[list[str], typer.Option("--kind", "-k", help="lds, mislabel, class, ...; again for more.")],
    data: Annotated[
        Path, typer.Option("--data", help=".npz with X and y (or X_train, y_train, X_test, y_test), or a table.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; a second call goes on there.")],
    model: Annotated[str, typer.Option(help="mlp or cnn.")] = "mlp",
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = "random,graddot,influence,ekfac,trak",
    label: Annotated[str | None, typer.Option("--label", help="Column of the label of a table.")] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 20,
    lr: Annotated[float, typer.Option()] = 0.05,
    optimizer: Annotated[str, typer.Option(help="sgd, adam or adamw.")] = "sgd",
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    hidden: Annotated[str, typer.Option(help="Widths of the hidden layers, separated by commas.")] = "64",
    n_subsets: Annotated[int, typer.Option(min=2, help="Retrained models of LDS.")] = 100,
    seed: Seed = 0,
) -> None:
    """Make benchmarks of your own data and judge methods on them."""
    from assay.attribution.builders import AttributionBenchmark
    from assay.attribution.comparison import compare
    from assay.attribution.data import Split, split_rows
    from assay.attribution.errors import AttributionError, UnsupportedModel
    from assay.attribution.fitting import FitSpec
    from assay.attribution.methods import METHODS
    from assay.attribution.models import ModelSpec
    from assay.attribution.report import write_report

    arrays = _arrays(data, label)
    if "X_train" in arrays:
        split = Split(arrays["X_train"], arrays["y_train"], arrays["X_test"], arrays["y_test"])
    else:
        split = split_rows(arrays["X"], arrays["y"], seed=seed)
    regression = split.y_train.dtype.kind == "f"
    outputs = 1 if regression else split.n_classes
    shape = split.X_train.shape[1:]
    if model == "mlp":
        inputs = 1
        for side in shape:
            inputs *= int(side)
        spec = ModelSpec.of(
            "mlp", inputs=inputs, outputs=outputs, hidden=tuple(int(h) for h in hidden.split(",") if h.strip())
        )
    elif model == "cnn":
        side = int(shape[-1]) if len(shape) > 1 else round(shape[0] ** 0.5)
        spec = ModelSpec.of("cnn", side=side, outputs=outputs, channels=int(shape[0]) if len(shape) == 3 else 1)
    else:
        raise UnsupportedModel(
            f"--model is mlp or cnn, not {model!r}; other networks: AttributionBenchmark.build in Python"
        )
    recipe = FitSpec(
        epochs=epochs, lr=lr, optimizer=optimizer, batch_size=batch_size,
        task="regression" if regression else "classification",
    )  # fmt: skip
    names = [name.strip() for name in methods.split(",") if name.strip()]
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise AttributionError(f"no method is named {unknown[0]!r}; there are {', '.join(METHODS)}")
    results: dict[str, dict[str, MetricResult]] = {name: {} for name in names}
    for one in kind:
        options: dict[str, Any] = {"n_subsets": n_subsets} if one == "lds" else {}
        typer.echo(f"{one}: making ground truth ...", err=True)
        judge = AttributionBenchmark.from_split(one, split, spec, recipe, seed=seed, folder=out / one, **options)
        for name in names:
            results[name][one] = judge.evaluate(METHODS[name]())
            typer.echo(f"  {name}: {results[name][one]}")
    found = compare(results)
    typer.echo("\n" + found.table("ci"))
    typer.echo(f"\nwrote {write_report(found, out).resolve()}")


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="Folder of bench.")]) -> None:
    """Print the table of a folder that bench made, with ranks and tests against the best."""
    from assay.attribution.errors import AttributionError

    path = folder / "results.json"
    if not path.is_file():
        raise AttributionError(f"{folder} has no results.json; run assay attribution bench first")
    rows = json.loads(path.read_text())
    kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
    typer.echo(f"{'method':14s}" + "".join(f"{kind:>24s}" for kind in kinds))
    for method, row in rows.items():
        cells = []
        for kind in kinds:
            one = row.get(kind)
            if one is None:
                cells.append(f"{'-':>24s}")
                continue
            p = one["adjusted_p_value_against_best"]
            mark = "best" if one["best"] else "not paired" if p is None else f"p {p:.3f}"
            cells.append(f"{one['score']:>12.3f} ({mark})".rjust(24))
        typer.echo(f"{method:14s}" + "".join(cells))
    typer.echo(f"\nthe page: {(folder / 'report.html').resolve()}")


def _arrays(path: Path, label: str | None) -> dict[str, np.ndarray]:
    import numpy as np

    from assay.attribution.errors import DataFormatError
    from assay.attribution.formats import read_table

    if path.suffix != ".npz":
        if label is None:
            raise DataFormatError(f"say which column of {path} is the label: --label NAME")
        table = read_table(path, label)
        return {"X": table.X, "y": table.y}
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise DataFormatError(f"{path} cannot be read as .npz: {error}") from error
    wanted = ({"X", "y"}, {"X_train", "y_train", "X_test", "y_test"})
    if not any(names <= set(arrays) for names in wanted):
        raise DataFormatError(
            f"{path} holds {sorted(arrays)}; it needs X and y, or X_train, y_train, X_test and y_test"
        )
    for name in arrays:
        if name.startswith("X") and arrays[name].dtype.kind in "fiu":
            arrays[name] = arrays[name].astype(np.float32)
    return arrays
