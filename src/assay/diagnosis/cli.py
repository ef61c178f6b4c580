"""``assay diagnosis ...``: a log of one's own, without the protocol around it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from assay.diagnosis.estimator import DiagnosisModel
    from assay.diagnosis.responses import ResponseData

app = typer.Typer(no_args_is_help=True, help="Cognitive diagnosis: which skill has which student.")

Source = Annotated[
    str,
    typer.Argument(help="A CSV file (long: a row an answer; wide: a column an item), or the name of a public table."),
]
QFile = Annotated[Path | None, typer.Option("--q", help="CSV file of the Q-matrix: items in rows, skills in columns.")]
Student = Annotated[str, typer.Option(help="Column of the student (long files).")]
Item = Annotated[str, typer.Option(help="Column of the item.")]
Correct = Annotated[str, typer.Option(help="Column of the answer, 0 or 1.")]
Skills = Annotated[str, typer.Option(help="Column of the skills, when there is no Q-matrix file.")]
Sep = Annotated[str, typer.Option(help="What separates skills.")]
OnDuplicate = Annotated[str, typer.Option(help="Which of several answers counts: first, last, mean, raise.")]
Order = Annotated[
    str | None, typer.Option(help="Column of time: the first answer is the earliest, rows of one attempt are merged.")
]
RightFrom = Annotated[float | None, typer.Option(help="Points at or above this are right, where answers are points.")]
Format = Annotated[
    str, typer.Option(help="csv, or a public log: assistments2009, eedi, junyi, ednet, ... (see `formats`).")
]
MinLogs = Annotated[int, typer.Option(help="Answers that a student must have.")]
ModelName = Annotated[
    str, typer.Option("--model", "-m", help="A model, with parameters in brackets: 'GDINA(rule=ACDM)'; auto chooses.")
]
Seed = Annotated[int, typer.Option(help="Seed of splits and models.")]


@dataclass(frozen=True)
class Columns:
    """How a file is to be read."""

    student: str
    item: str
    correct: str
    skills: str
    sep: str
    on_duplicate: str
    order: str | None = None
    right_from: float | None = None
    format: str = "csv"


def _open(source: str, q: Path | None, columns: Columns) -> ResponseData:
    from assay.diagnosis.data import DATASETS, load
    from assay.diagnosis.errors import DiagnosisError, UnknownName
    from assay.diagnosis.formats import READERS
    from assay.diagnosis.readers import read_table

    if columns.format != "csv":
        if columns.format not in READERS:
            raise UnknownName.of("format", columns.format, ("csv", *READERS))
        if columns.format == "ednet":
            return READERS["ednet"](source, q or Path(source).parent / "questions.csv")
        return READERS[columns.format](source)
    if source in DATASETS:
        return load(source)
    if not Path(source).exists():
        raise DiagnosisError(
            f"{source!r} is neither a file nor a public table; the tables are {', '.join(sorted(DATASETS))}"
        )
    named: dict[str, Any] = {
        "student": columns.student,
        "item": columns.item,
        "correct": columns.correct,
        "sep": columns.sep,
        "on_duplicate": columns.on_duplicate,
        "order": columns.order,
        "threshold": columns.right_from,
    }
    if q is None:
        named["skills"] = columns.skills
    return read_table(source, q, **named)


def _model(text: str, data: ResponseData, seed: int) -> DiagnosisModel:
    from assay.diagnosis.benchmark import read_model
    from assay.diagnosis.models import model_class

    if text == "auto":
        few = data.n_kcs <= 6 and data.n_students >= 200 and data.dense_q().any(1).all()
        text = "GDINA" if few else "MIRT"
    name, params = read_model(text)
    kind = model_class(name)
    if "seed" in kind._parameter_names():
        params.setdefault("seed", seed)
    model: DiagnosisModel = kind(**params)
    return model


@app.command()
def check(
    source: Source, q: QFile = None, student: Student = "user", item: Item = "question", correct: Correct = "correct",
    skills: Skills = "skills", sep: Sep = "~", on_duplicate: OnDuplicate = "first", order: Order = None,
    right_from: RightFrom = None, format: Format = "csv",
) -> None:  # fmt: skip
    """Density, repeats, coverage of skills, and whether the Q-matrix can tell skills apart."""
    from assay.diagnosis.check import check_data

    data = _open(source, q, Columns(student, item, correct, skills, sep, on_duplicate, order, right_from, format))
    typer.echo(str(check_data(data)))
    for name, value in data.notes.items():
        if isinstance(value, (int, str)):
            typer.echo(f"{name.replace('_', ' ')}: {value}")


@app.command()
def fit(
    source: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="File of the fitted model (.npz).")] = Path(
        "model.npz"
    ),
    q: QFile = None,
    model: ModelName = "auto",
    seed: Seed = 0,
    min_logs: MinLogs = 1,
    student: Student = "user",
    item: Item = "question",
    correct: Correct = "correct",
    skills: Skills = "skills",
    sep: Sep = "~",
    on_duplicate: OnDuplicate = "first",
    order: Order = None,
    right_from: RightFrom = None,
    format: Format = "csv",
    items: Annotated[Path | None, typer.Option(help="Also write a table of the items (CSV).")] = None,
) -> None:
    """Fit a model, say how well it foretells held-out answers, and keep it."""
    import pandas as pd

    from assay.diagnosis.evaluation import figures
    from assay.diagnosis.protocol import learning_curve_diagnosis
    from assay.diagnosis.responses import preprocess

    data = preprocess(
        _open(source, q, Columns(student, item, correct, skills, sep, on_duplicate, order, right_from, format)),
        min_logs=min_logs,
        min_item_logs=1,
    )
    typer.echo(repr(data))
    made = _model(model, data, seed)
    split = data.split("student", seed)
    held = made.clone().fit(split.train, split.valid)
    if hasattr(held, "history_") and "stopping" in held.get_params():
        typer.echo(f"training: {learning_curve_diagnosis(held)}")
    found = figures(held, split, ["auc", "accuracy", "log_loss", "doa", "doa_gain"], seed=seed)
    typer.echo("on held-out answers: " + ", ".join(f"{k} {v:.3f}" for k, v in found.items()))
    made.fit(data)
    made.save(output)
    typer.echo(f"log-likelihood {made.loglik_:.2f}, {made.n_params_} parameters")
    typer.echo(f"wrote {output.resolve()}")
    if items is not None:
        table = pd.DataFrame(
            {
                "item": list(data.item_ids),
                "difficulty": made.difficulty_,
                "answers": [int((data.item == j).sum()) for j in range(data.n_items)],
            }
        )
        extra = getattr(made, "item_params_", None)
        if extra is not None:
            names = ["guess", "slip"] if extra.shape[1] == 2 else ["a", "b", "c"]
            table = table.join(pd.DataFrame(extra, columns=names))
        table.to_csv(items, index=False)
        typer.echo(f"wrote {items.resolve()}")


@app.command()
def diagnose(
    source: Source,
    q: QFile = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML page to write.")] = Path("diagnosis.html"),
    table: Annotated[Path | None, typer.Option(help="Also write a row a student and skill (CSV).")] = None,
    fitted: Annotated[
        Path | None, typer.Option(help="A model of `fit` to score these students with; default: fit one now.")
    ] = None,
    model: ModelName = "auto",
    threshold: Annotated[float, typer.Option(help="Chance of a right answer that passes a skill.")] = 0.65,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Diagnosis of a class",
    draws: Annotated[int, typer.Option(min=2, help="Draws of each student's state.")] = 100,
    refits: Annotated[
        int | None,
        typer.Option(min=0, help="Refits on resampled students, so that bars count the items' uncertainty; 0: none."),
    ] = None,
    students: Annotated[int, typer.Option(min=1, help="Students that get a part of the page.")] = 400,
    seed: Seed = 0,
    student: Student = "user",
    item: Item = "question",
    correct: Correct = "correct",
    skills: Skills = "skills",
    sep: Sep = "~",
    on_duplicate: OnDuplicate = "first",
    order: Order = None,
    right_from: RightFrom = None,
    format: Format = "csv",
) -> None:
    """A page for the class and for each student: which skills, how sure, what to practise next."""
    from assay.diagnosis.estimator import DiagnosisModel
    from assay.diagnosis.page import write_report
    from assay.diagnosis.report import diagnose as run

    data = _open(source, q, Columns(student, item, correct, skills, sep, on_duplicate, order, right_from, format))
    made = DiagnosisModel.load(fitted) if fitted is not None else _model(model, data, seed).fit(data)
    found = run(made, data, threshold=threshold, draws=draws, refits=refits, seed=seed)
    typer.echo(f"wrote {write_report(found, output, title=title, students=students).resolve()}")
    if table is not None:
        found.frame().to_csv(table, index=False)
        typer.echo(f"wrote {table.resolve()}")


@app.command()
def bench(
    source: Source,
    q: QFile = None,
    models: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Model, again for more.  [default: all]")
    ] = None,
    stopping: Annotated[list[str] | None, typer.Option(help="Stopping rule, again for more.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, from 0.")] = 2,
    trials: Annotated[int, typer.Option(min=1, help="Trials of the search a cell.")] = 1,
    scheme: Annotated[str, typer.Option(help="student, response, new_students or new_items.")] = "student",
    folder: Annotated[Path, typer.Option(help="Finished cells; a killed comparison goes on from there.")] = Path(
        "cells"
    ),
    reliability: Annotated[
        bool, typer.Option(help="Also split-half reliability (fits every model twice more).")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="All figures of all cells (CSV).")] = None,
    min_logs: Annotated[
        int | None, typer.Option(help="Answers that a student must have.  [default: 15, of public tables 1]")
    ] = None,
    student: Student = "user",
    item: Item = "question",
    correct: Correct = "correct",
    skills: Skills = "skills",
    sep: Sep = "~",
    on_duplicate: OnDuplicate = "first",
    order: Order = None,
    right_from: RightFrom = None,
    format: Format = "csv",
) -> None:
    """Compare models on a log of one's own: prediction beside diagnosis, stopping rules, and whether the two rankings
    agree.
    """
    from assay.diagnosis.data import DATASETS
    from assay.diagnosis.evaluation import COSTLY, METRICS
    from assay.diagnosis.models import MODELS
    from assay.diagnosis.protocol import compare, estimate_seconds
    from assay.diagnosis.responses import preprocess

    data = _open(source, q, Columns(student, item, correct, skills, sep, on_duplicate, order, right_from, format))
    least = min_logs if min_logs is not None else 1 if source in DATASETS else 15
    data = preprocess(data, min_logs=least, min_item_logs=1 if source in DATASETS else 5)
    counts = data.notes["preprocess"]
    typer.echo("kept " + ", ".join(f"{counts['after'][k]:,} of {counts['before'][k]:,} {k}" for k in counts["after"]))
    chosen = {text: _model(text, data, 0) for text in (models or MODELS)}
    rules = stopping or ["valid_logloss"]
    seconds = estimate_seconds(
        [type(m).__name__ for m in chosen.values()], data, seeds=seeds, trials=trials, stopping=len(rules)
    )
    typer.echo(f"{data!r}: about {seconds / 60:.0f} minutes on one core")
    metrics = METRICS if reliability else [m for m in METRICS if m not in COSTLY]
    found = compare(
        chosen, data, scheme=scheme, seeds=range(seeds), stopping=rules, trials=trials, folder=folder, metrics=metrics
    )
    shown = ["model", "stopping", "auc", "auc_sd", "log_loss", "doa", "doa_gain", "kc_specificity"]
    shown += ["kc_reliability"] if reliability else []
    gains = ["gain_over_2pl", "gain_low", "gain_high"]
    typer.echo(found.table()[[*shown, *gains]].round(4).to_string(index=False))
    typer.echo("gain over 2PL: log loss, mean over seeds, and bounds of 95% from resampled students\n")
    typer.echo("Do the rankings agree with the ranking by AUC?")
    typer.echo(found.rankings().round(3).to_string(index=False))
    if len(rules) > 1:
        for metric in ("auc", "doa"):
            typer.echo(f"\n{metric.upper()} under each stopping rule")
            typer.echo(found.stopping_table(metric).round(4).to_string())
    if output is not None:
        found.cells.to_csv(output, index=False)
        typer.echo(f"wrote {output.resolve()}")


@app.command()
def difficulty(
    source: Source,
    ratings: Annotated[
        Path, typer.Option(help="CSV of people's ratings: item a, item b, how much harder b is (columns a, b, harder).")
    ],
    q: QFile = None,
    judgements: Annotated[
        list[Path] | None,
        typer.Option(help="CSV of a judge's answers: columns first, second, harder (items); again for more judges."),
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Model, again for more.  [default: all]")
    ] = None,
    seed: Seed = 0,
    student: Student = "user",
    item: Item = "question",
    correct: Correct = "correct",
    skills: Skills = "skills",
    sep: Sep = "~",
    on_duplicate: OnDuplicate = "first",
    order: Order = None,
    right_from: RightFrom = None,
    format: Format = "csv",
) -> None:
    """Whose difficulties agree with people: those of models, the share of wrong answers, or a judge of titles?"""
    from assay.diagnosis.difficulty import compare_difficulty, difficulty_from_titles, read_ratings
    from assay.diagnosis.models import MODELS

    data = _open(source, q, Columns(student, item, correct, skills, sep, on_duplicate, order, right_from, format))
    names = [str(t) for t in (data.titles or data.item_ids)]
    judges = {
        path.stem: difficulty_from_titles(names, path, items=data.item_ids).difficulty for path in judgements or ()
    }
    chosen = {text: _model(text, data, seed) for text in (models or MODELS)}
    if format == "junyi":
        from assay.diagnosis.formats import read_junyi_ratings

        pairs = read_junyi_ratings(ratings, data)
    else:
        pairs = read_ratings(ratings, data)
    typer.echo(compare_difficulty(chosen, data, pairs, others=judges, seed=seed).round(3).to_string(index=False))


@app.command()
def simulate(
    folder: Annotated[
        Path, typer.Argument(help="Folder to write responses.csv, q.csv, mastery.csv and ratings.csv into.")
    ],
    students: Annotated[int, typer.Option(min=1)] = 500,
    items: Annotated[int, typer.Option(min=1)] = 40,
    skills: Annotated[int, typer.Option(min=1)] = 5,
    density: Annotated[float, typer.Option(min=0.001, max=1.0)] = 0.6,
    kind: Annotated[str, typer.Option(help="dina, gdina, mirt or ncdm-like.")] = "dina",
    seed: Seed = 0,
) -> None:
    """Write a platform with known truth."""
    import pandas as pd

    from assay.diagnosis.simulate import simulate_platform

    made = simulate_platform(students, items, skills, density, model=kind, seed=seed)
    data = made.data
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"item{j + 1}" for j in range(items)]
    long = pd.DataFrame({"user": data.student, "question": [names[j] for j in data.item], "correct": data.correct})
    long["skills"] = [
        "~".join(data.kc_names[k] for k in data.q.indices[data.q.indptr[j] : data.q.indptr[j + 1]]) for j in data.item
    ]
    long.to_csv(folder / "responses.csv", index=False)
    pd.DataFrame(data.q.toarray(), columns=list(data.kc_names)).assign(item=names).set_index("item").to_csv(
        folder / "q.csv"
    )
    pd.DataFrame(made.alpha, columns=list(data.kc_names)).to_csv(folder / "mastery.csv", index_label="user")
    rated = pd.DataFrame([(names[a], names[b], r) for a, b, r in made.ratings], columns=["a", "b", "harder"])
    rated.to_csv(folder / "ratings.csv", index=False)
    pd.DataFrame({"item": names, "title": data.titles}).to_csv(folder / "titles.csv", index=False)
    typer.echo(f"wrote {len(long):,} answers of {students:,} students into {folder.resolve()}")


@app.command()
def formats() -> None:
    """The public logs that `--format` reads."""
    from assay.diagnosis.formats import READERS

    for name, reader in READERS.items():
        typer.echo(f"{name}: {(reader.__doc__ or '').strip().splitlines()[0]}")


@app.command()
def models() -> None:
    """The models, with their parameters."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from assay.diagnosis.models import MODELS, model_class

    table = Table(box=None, pad_edge=False)
    for head in ("model", "what it is", "parameters"):
        table.add_column(head, overflow="fold")
    for name in MODELS:
        try:
            kind = model_class(name)
        except ImportError as error:
            table.add_row(name, Text(str(error)), "")
            continue
        params = ", ".join(f"{k}={v!r}" for k, v in kind().get_params().items())
        table.add_row(name, Text((kind.__doc__ or "").strip().splitlines()[0]), Text(params))
    Console().print(table)
