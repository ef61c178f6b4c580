"""``assay shapes ...``: cells of one's own, without the protocol around them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="The shape of single-cell data.")


@app.command()
def detect(
    cells: Annotated[
        str, typer.Argument(help="A file (.h5ad, .loom, .csv, .npz, .fcs, a 10x folder), or the name of a data set.")
    ],
    rep: Annotated[
        str | None, typer.Option(help="Representation in obsm, or X.  [default: X_pca, else made from X]")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one static page.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for skeleton (.npz, GraphML), milestones and scores.")
    ] = None,
    embedding: Annotated[str | None, typer.Option(help="Entry of obsm to draw on, such as X_umap.")] = None,
    color: Annotated[list[str] | None, typer.Option(help="Column of obs to colour by on the page; repeatable.")] = None,
    obs: Annotated[
        list[str] | None, typer.Option(help="Column of a table that is an annotation and no feature; repeatable.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Column of a table to leave out; repeatable.")] = None,
    groupby: Annotated[str | None, typer.Option(help="Column of obs: one verdict a group.")] = None,
    batch: Annotated[str | None, typer.Option(help="Column of obs: warn if the skeleton follows it.")] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="Subsamples for the confidence.")] = 30,
    stability: Annotated[bool, typer.Option(help="Also refit on changed settings.")] = True,
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps neighbours and eigenpairs.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Threads of the neighbour search.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
) -> None:
    """Say what shape these cells have, why, and which analysis fits."""
    from assay.shapes.classify import GroupedReport, detect_shape
    from assay.shapes.data import DATASETS, load
    from assay.shapes.readers import TABLES, kind_of, read_cells

    beside = dict.fromkeys([*(obs or []), *(color or []), *([batch] if batch else []), *([groupby] if groupby else [])])
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        if cells in DATASETS and not Path(cells).exists():
            data: Any = load(cells).X
        else:
            data = read_cells(cells, obs=list(beside), exclude=exclude or [])
            if beside and rep is None and kind_of(cells) in TABLES:
                rep = "X"  # a table holds what is to be looked at, not counts
    of_reading = [str(item.message) for item in raised if type(item.message).__module__.startswith("assay.")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they stand in the report
        report = detect_shape(
            data,
            use_rep=rep,
            groupby=groupby,
            batch=batch,
            stability=stability,
            n_bootstrap=bootstrap,
            n_jobs=jobs,
            random_state=seed,
            cache=cache,
        )
    if isinstance(report, GroupedReport):
        for line in of_reading:
            typer.echo(f"warning: {line}")
        for name, one in report.reports.items():
            typer.echo(f"{name}: {one.summary()}\n")
        for name, reason in report.failed.items():
            typer.echo(f"{name}: not judged ({reason})")
        names = list(report.reports)
        for name, row in zip(names, report.distances, strict=True):
            typer.echo(f"{name:20s} " + " ".join(f"{x:6.3f}" for x in row))
        return
    report.warnings = of_reading + report.warnings
    typer.echo(report.summary())
    if html is not None:
        from assay.shapes.prepare import column_of

        columns = {name: column_of(data, name) for name in beside}
        report.to_html(html, None if embedding is None else _embedding(data, embedding), columns)
        typer.echo(f"page: {html}")
    if out is not None:
        _write_folder(out, report, getattr(data, "obs_names", None))
        typer.echo(f"files: {out}")


def _embedding(data: Any, name: str) -> Any:
    import numpy as np

    from assay.shapes.errors import UnknownRepresentationError

    available = list(getattr(data, "obsm", {}).keys())
    found = next((key for key in (name, f"X_{name}") if key in available), None)
    if found is None:
        raise UnknownRepresentationError(name, available)
    return np.asarray(data.obsm[found])


def _write_folder(out: Path, report: Any, names: Any) -> None:
    from assay.shapes.files import written_whole

    out.mkdir(parents=True, exist_ok=True)
    report.skeleton.save(out / "skeleton.npz")
    report.skeleton.to_graphml(out / "skeleton.graphml")
    cells = None if names is None else [str(name) for name in names]
    network, percentages = report.skeleton.milestones(report.tower.edge_of_cell_, report.tower.t_, cells)
    for name, table in (("milestone_network", network), ("milestone_percentages", percentages)):
        with written_whole(out / f"{name}.csv") as partial:
            table.to_csv(partial, index=False)
    with written_whole(out / "report.json") as partial:
        partial.write_text(json.dumps(report.to_dict(), indent=1))


@app.command()
def make(
    kind: Annotated[str, typer.Argument(help="clusters, path, tree, star, cycle, lollipop, simplex or mixture.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write (.npz; parameters go beside it).")],
    n: Annotated[int, typer.Option(help="Cells.")] = 2000,
    d: Annotated[int, typer.Option(help="Columns.")] = 50,
    sigma: Annotated[float, typer.Option(help="Thickness as a share of the mean edge.")] = 0.1,
    imbalance: Annotated[float, typer.Option(help="Heaviest edge over lightest.")] = 1.0,
    parts: Annotated[int | None, typer.Option(help="Clusters, branches, archetypes.")] = None,
    counts: Annotated[bool, typer.Option(help="Also draw counts of 2000 genes.")] = False,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
) -> None:
    """Generate cells around a known skeleton."""
    from assay.shapes.synthetic import make_shape

    made = make_shape(kind, n, d, sigma=sigma, imbalance=imbalance, parts=parts, counts=counts, seed=seed)
    made.save(out)
    typer.echo(f"{out}: {n} cells, {made.skeleton!r}, {', '.join(made.labels) or 'no official label'}")


@app.command()
def score(
    pred: Annotated[Path, typer.Argument(help="Skeleton (.npz with vertices and edges).")],
    true: Annotated[Path, typer.Argument(help="The truth (.npz of `make`, or a skeleton).")],
) -> None:
    """Score a skeleton against the truth."""
    from assay.shapes.metrics import score_skeleton
    from assay.shapes.skeleton import Skeleton

    for name, value in score_skeleton(Skeleton.load(pred), Skeleton.load(true)).items():
        typer.echo(f"{name:20s} {value:.4f}")


@app.command()
def bench(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of runs; what is there is not run again.")],
    methods: Annotated[str, typer.Option(help="Methods, with commas.")] = "reeb,paga,mapper",
    grid: Annotated[str, typer.Option(help="bench-v1, or smoke (a few tasks).")] = "bench-v1",
    seeds: Annotated[int, typer.Option(min=1, help="Replicates.")] = 3,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes.")] = 0,
) -> None:
    """Run the grid of generated shapes; a killed run goes on where it stopped."""
    from assay.shapes.benchmark import benchmark
    from assay.shapes.errors import UnknownKindError

    if grid not in ("bench-v1", "smoke"):
        raise UnknownKindError(f"there is no grid {grid!r}; give bench-v1 or smoke")
    tasks = [t for t, task in benchmark.tasks.items() if "generated" in task.tags]
    if grid == "smoke":
        tasks = [t for t in tasks if t.endswith("n500-s0.05-i1")]
    results = benchmark.run(tasks, methods.split(","), range(seeds), store=out, workers=workers)
    for metric in ("b1_error", "topology_right", "overall"):
        for row in results.leaderboard(metric).rows:
            typer.echo(f"{metric:16s} {row.method:22s} {row.mean:.3f}")
