"""``assay uncertainty ...``: saved predictions of one's own, without the protocol around them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="Predictive uncertainty of saved predictions.")

Predictions = Annotated[Path, typer.Argument(help="Member probabilities: .npz, .npy or .csv.")]
Labels = Annotated[Path | None, typer.Option("--y", help="Labels (or distributions): .csv, .npy or .npz.")]
Axis = Annotated[
    int | None,
    typer.Option(help="Axis of the members: 0 for (members, rows, classes), 1 for (rows, members, classes)."),
]
Key = Annotated[str | None, typer.Option(help="Array in an .npz with several.")]
Alpha = Annotated[float, typer.Option(help="Share of rows whose set may miss.")]
Seed = Annotated[int, typer.Option(help="Seed of splits and randomised scores.")]


@app.command()
def audit(
    predictions: Predictions,
    y: Labels = None,
    axis: Axis = None,
    key: Key = None,
    groups: Annotated[Path | None, typer.Option(help="Group of each row, for coverage by group.")] = None,
    ood: Annotated[Path | None, typer.Option(help="Predictions of the same members on foreign inputs.")] = None,
    classes: Annotated[str | None, typer.Option(help="Class names, separated by commas.")] = None,
    alpha: Alpha = 0.1,
    resamples: Annotated[int, typer.Option(min=0, help="Of the bootstrap intervals.")] = 200,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for report.html, report.json and rows.csv.")
    ] = None,
) -> None:
    """The full report: quality, calibration, uncertainty, selective prediction, conformal sets."""
    from assay.uncertainty.auditing import audit as make_audit
    from assay.uncertainty.auditing import read_labels

    found = make_audit(
        predictions,
        y,
        axis=axis,
        key=key,
        groups=None if groups is None else read_labels(groups),
        ood=ood,
        alpha=alpha,
        classes=classes.split(",") if classes else None,
        resamples=resamples,
        seed=seed,
    )
    _print_sections(found.sections)
    if out is not None:
        typer.echo(f"\nwrote {found.write(out).resolve()}")


@app.command()
def conformal(
    calibration: Annotated[Path, typer.Argument(help="Probabilities of the calibration rows.")],
    y: Annotated[Path, typer.Option("--y", help="Labels of the calibration rows.")],
    test: Annotated[Path, typer.Option("--test", help="Probabilities of the rows that need sets.")],
    score: Annotated[str, typer.Option(help="lac, aps, raps or saps.")] = "aps",
    alpha: Alpha = 0.1,
    by_class: Annotated[bool, typer.Option("--by-class", help="One threshold a class.")] = False,
    axis: Axis = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="CSV file for the sets.")] = None,
) -> None:
    """Sets of labels that hold the true one with probability 1 - alpha."""
    from assay.uncertainty.auditing import read_labels, read_predictions
    from assay.uncertainty.conformal import SplitConformal

    labels = read_labels(y)
    known, _ = read_predictions(calibration, axis=axis, n_rows=len(labels))
    new, _ = read_predictions(test, axis=axis)
    names = known.classes if labels.dtype.kind not in "iu" else None
    method = SplitConformal(score, alpha, random_state=seed, groups="class" if by_class else None, classes=names)
    sets = method.fit(known.mean(), labels).predict(new.mean()).named(known.classes)
    typer.echo(
        f"{len(sets):,} sets, mean size {sets.size.mean():.3f}, {int((sets.size == 0).sum()):,} empty; "
        f"from {len(labels):,} calibration rows"
    )
    if out is not None:
        _write(
            out,
            "row,size,labels\n"
            + "".join(f"{i},{len(s)},{' '.join(map(str, s))}\n" for i, s in enumerate(sets.labels())),
        )
        typer.echo(f"wrote {out.resolve()}")


@app.command("first-order")
def first_order(
    predictions: Predictions,
    target: Annotated[
        Path, typer.Option("--target", help="True distributions: .csv, .npy or .npz (counts are accepted).")
    ],
    axis: Axis = None,
    key: Key = None,
    seed: Seed = 0,
) -> None:
    """Predictions against true distributions: coverage, efficiency, distances, conformal sets."""
    from assay.uncertainty.auditing import read_labels, read_predictions
    from assay.uncertainty.protocols import first_order as judge
    from assay.uncertainty.protocols import first_order_conformal
    from assay.uncertainty.simplex import as_probabilities

    y = as_probabilities(read_labels(target), renormalize=True, what=str(target))
    sample, _ = read_predictions(predictions, key=key, axis=axis, n_rows=len(y))
    result = judge(sample, y, seed=seed)
    sections: dict[str, dict[str, Any]] = {
        "first-order": {k: (v, *result.ci.get(k, (v, v))) for k, v in result.scores.items()}
    }
    for score in ("lac", "aps", "raps", "saps"):
        found = first_order_conformal(sample.mean(), y, score=score, seed=seed)
        sections[f"conformal, {score}"] = {k: (v, *found.ci[k]) for k, v in found.scores.items()}
    _print_sections(sections)


@app.command()
def case(
    name: Annotated[str, typer.Argument(help="language, graph or stream.")],
    seed: Seed = 0,
    plot: Annotated[Path | None, typer.Option(help="Also draw it into this file (graph and stream).")] = None,
) -> None:
    """Run a case study: a language model of known ambiguity, a graph with bridges, a drifting stream."""
    from assay.uncertainty.cases import CASES, run_case
    from assay.uncertainty.errors import UncertaintyError

    if name not in CASES:
        raise UncertaintyError(f"the cases are {', '.join(CASES)}, not {name!r}")
    figures, figure = run_case(name, seed=seed, draw=plot is not None)
    _print_sections({f"case {name}, seed {seed}": figures})
    if plot is not None and figure is not None:
        figure.savefig(plot, dpi=150)
        typer.echo(f"drawn into {plot.resolve()}")


def _print_sections(sections: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for title, figures in sections.items():
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column(min_width=36)
        table.add_column(justify="right")
        table.add_column()
        for label, value in figures.items():
            number = value[0] if isinstance(value, tuple) else value
            shown = f"{number:.4f}" if isinstance(number, float) else str(number)
            between = f"[{value[1]:.4f}, {value[2]:.4f}]" if isinstance(value, tuple) else ""
            table.add_row(Text(str(label)), Text(shown), Text(between, style="dim"))
        console.print(table)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
