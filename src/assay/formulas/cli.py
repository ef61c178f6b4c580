"""``assay formulas ...``: suggestions, audits, tasks and coverage for one's own workbooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from assay.formulas.tasks import Task

app = typer.Typer(no_args_is_help=True, help="The formula that a spreadsheet cell needs.")

Book = Annotated[Path, typer.Argument(help="A workbook (.xlsx, .xlsm, .ods). It is opened for reading only.")]
Where = Annotated[str, typer.Argument(help="A cell or a range: Sheet1!D10, 'My sheet'!D10:D40.")]
Sources = Annotated[list[Path], typer.Argument(help="Workbooks, or folders of workbooks.")]
Mode = Annotated[str, typer.Option(help="fresh (no copy of the formula in sight) or extend.")]
SystemName = Annotated[str, typer.Option("--system", "-s", help="cascade, neighbour, aggregate, retrieval, ...")]
Seed = Annotated[int, typer.Option(help="Of the choice of tasks.")]


def _system(name: str, corpus: list[Path] | None = None) -> Any:
    from assay.formulas.systems.registry import make_system

    if corpus:
        from assay.formulas.systems import Aggregate, Cascade, Neighbour
        from assay.formulas.systems.retrieval import Retrieval
        from assay.formulas.tasks import workbook_files

        retrieval = Retrieval(workbook_files(corpus))
        return retrieval if name == "retrieval" else Cascade([Neighbour(), Aggregate(), retrieval])
    return make_system(name)


@app.command()
def suggest(
    workbook: Book,
    where: Where,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the first suggestion into a copy.")] = None,
    system: SystemName = "cascade",
    corpus: Annotated[
        list[Path] | None, typer.Option(help="Workbooks whose formulas may be reused, again for more.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Suggestions at most.")] = 3,
    prefix: Annotated[str, typer.Option(help="What has been typed, such as =SU.")] = "",
    times: Annotated[bool, typer.Option("--times", help="Say where the time went.")] = False,
) -> None:
    """Suggest the formula of a cell, or one for a range, with the reason and the cells that speak for it."""
    from rich.console import Console
    from rich.markup import escape

    from assay.formulas.suggest import suggest_file

    advice = suggest_file(workbook, where, out, system=_system(system, corpus), k=k, prefix=prefix)
    console = Console(highlight=False)
    if not advice.suggestions:
        console.print(f"{escape(str(advice.cell))}: no suggestion (nothing is sure enough)")
        raise typer.Exit(1)
    for i, s in enumerate(advice.suggestions):
        shown = f"   gives {escape(str(advice.value))}" if i == 0 and advice.value is not None else ""
        console.print(f"[bold]={escape(s.formula)}[/bold]  {s.score:.0%}  {escape(s.source)}{shown}")
        console.print(f"    because: {escape(s.reason)}")
        if s.evidence:
            console.print(f"    look at: {escape(', '.join(c.address for c in s.evidence[:8]))}")
        if times and i == 0:
            console.print(
                "    time: " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in s.parts) + f"; {s.ms:.1f} ms in all"
            )
    if advice.fill:
        bad = [c for c in advice.fill if c.problem]
        console.print(f"{len(advice.fill) - len(bad)} of {len(advice.fill)} cells can be filled")
        for check in bad[:10]:
            console.print(f"    {check.cell.address}: {escape(check.problem)}")
    if advice.written:
        console.print(f"written to {escape(advice.written)} (calculated when it is opened)")


@app.command()
def audit(
    sources: Sources,
    kind: Annotated[list[str] | None, typer.Option(help="Only findings of this kind, again for more.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One finding a line, as JSON.")] = False,
) -> None:
    """List cells that disagree with what the sheet implies."""
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.markup import escape

    from assay.formulas.auditing import KINDS
    from assay.formulas.auditing import audit as find
    from assay.formulas.errors import FormulaError
    from assay.formulas.tasks import workbook_files

    unknown = sorted(set(kind or []) - set(KINDS))
    if unknown:
        raise FormulaError(f"there is no kind {unknown[0]!r} of finding; there is {', '.join(KINDS)}")
    skipped: list[tuple[str, str]] = []
    files = [f for source in sources for f in workbook_files(source)]
    found = find(files, skipped=skipped)
    found = [f for f in found if not kind or f.kind in kind]
    console = Console(highlight=False, soft_wrap=True)
    for finding in found:
        if json_:
            print(json.dumps(asdict(finding)))
            continue
        console.print(
            f"[bold]{escape(finding.file)} {escape(finding.sheet)}!{finding.cell}[/bold]  {finding.kind}: "
            f"{escape(finding.formula)}  expected {escape(finding.expected)}  ({escape(finding.evidence)})"
        )
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    for name, reason in skipped:
        errors.print(f"not read: {escape(name)}: {escape(reason)}")
    if not json_:
        console.print(f"{len(found)} findings in {len(files) - len(skipped)} workbooks")


@app.command()
def build(
    sources: Sources,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the tasks and copies of their workbooks.")],
    n: Annotated[int, typer.Option("-n", min=1, help="Tasks at most.")] = 500,
    mode: Mode = "fresh",
    seed: Seed = 0,
    abstain: Annotated[float, typer.Option(min=0, max=0.9, help="Share of tasks where no formula belongs.")] = 0.1,
) -> None:
    """Make tasks from one's own workbooks."""
    from assay.formulas.tasks import build_tasks, save_tasks

    skipped: list[tuple[str, str]] = []
    tasks = build_tasks(sources, n, mode, seed=seed, abstain=abstain, skipped=skipped)
    path = save_tasks(tasks, out)
    for name, reason in skipped:
        typer.echo(f"not read: {name}: {reason}", err=True)
    typer.echo(f"{len(tasks)} tasks in {path}")


def _tasks(source: Path) -> list[Task]:
    from assay.formulas.loaders import load_fxbench
    from assay.formulas.tasks import build_tasks, load_tasks

    if source.suffix == ".parquet":
        return load_fxbench(source)
    if (source / "tasks.jsonl").exists():
        return load_tasks(source)
    return build_tasks([source])


TaskSource = Annotated[Path, typer.Argument(help="A folder of `build`, the parquet file of fxbench, or workbooks.")]


@app.command()
def coverage(
    source: TaskSource,
    strategy: Annotated[list[str] | None, typer.Option(help="Context strategy, again for more.")] = None,
    budget: Annotated[list[int] | None, typer.Option(help="Tokens, again for more.")] = None,
    tokenizer: Annotated[str, typer.Option(help="bytes4, or tiktoken:<encoding>.")] = "bytes4",
    plot: Annotated[
        Path | None, typer.Option(help="Draw coverage over tokens into this file (.png, .pdf, .svg).")
    ] = None,
) -> None:
    """Say which share of tasks each context strategy can answer at all, under budgets of tokens."""
    from rich.console import Console
    from rich.table import Table

    from assay.formulas.context import STRATEGIES
    from assay.formulas.context import coverage as measure

    rows = measure(_tasks(source), strategy or STRATEGIES, budget or (128, 256, 512, 1024, 2048), tokenizer)
    table = Table(box=None)
    for head in ("strategy", "budget", "coverage", "recall", "tokens", "tokens a covered task", "cells"):
        table.add_column(head, justify="left" if head == "strategy" else "right")
    for row in rows:
        table.add_row(
            row.strategy, str(row.budget or "all"), f"{row.coverage:.3f}", f"{row.recall:.3f}", f"{row.tokens:.0f}",
            f"{row.tokens_per_covered:.0f}", f"{row.cells:.0f}",
        )  # fmt: skip
    Console().print(table)
    if plot is not None:
        from assay.formulas.plots import plot_coverage

        plot_coverage(rows).savefig(plot, dpi=150, bbox_inches="tight")


@app.command()
def run(
    source: TaskSource,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results; what is in it is not done again.")],
    system: Annotated[list[str] | None, typer.Option("--system", "-s", help="System, again for more.")] = None,
    k: Annotated[int, typer.Option("-k", min=1)] = 5,
    workers: Annotated[int, typer.Option(min=1, help="Calls at once (for endpoints).")] = 1,
    timeout: Annotated[float | None, typer.Option(help="Seconds for one call.")] = None,
    keystrokes: Annotated[bool, typer.Option("--keystrokes", help="Also ask after every prefix.")] = False,
) -> None:
    """Run systems on tasks; every result is kept at once."""
    from rich.console import Console
    from rich.progress import Progress

    from assay.formulas.runs import run as run_tasks

    systems = [_system(name) for name in system or ["neighbour", "aggregate", "retrieval", "cascade"]]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("tasks")
        run_tasks(
            _tasks(source), systems, out, k, workers=workers, timeout_s=timeout, keystrokes=keystrokes,
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )  # fmt: skip
    report(out)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="Folder of `run`.")]) -> None:
    """Show the figures of a folder of results."""
    from rich.console import Console
    from rich.table import Table

    from assay.formulas.runs import score

    reports = score(folder)
    table = Table(box=None)
    columns = {
        "exact": "exact",
        "sketch": "sketch",
        "precision": "precision",
        "abstained_rightly": "silent rightly",
        "not_executable": "no engine",
        "p50_ms": "p50 ms",
        "p95_ms": "p95 ms",
    }
    table.add_column("system", no_wrap=True)
    for head in ("correct, 95 %", *columns.values(), "tasks"):
        table.add_column(head, justify="right")
    for r in reports:
        low, high = r.interval
        table.add_row(
            r.system,
            f"{r.figures['correct']:.3f} ({low:.3f}-{high:.3f})",
            *(f"{r.figures[name]:.3f}" for name in columns),
            f"{r.figures['tasks']:.0f}",
        )
    console = Console()
    console.print(table)
    for r in reports:
        for note in r.notes:
            console.print(f"{r.system}: {note}", markup=False)


@app.command()
def train(
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the model.")],
    source: Annotated[Path | None, typer.Option(help="Tasks to train on.  [default: made workbooks]")] = None,
    books: Annotated[int, typer.Option(min=10, help="Made workbooks.")] = 400,
    epochs: Annotated[int, typer.Option(min=1)] = 24,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 2e-3,
    fmt: Annotated[str, typer.Option(help="dense or plain.")] = "dense",
    budget: Annotated[int, typer.Option(min=32, help="Tokens of context.")] = 256,
    width: Annotated[int, typer.Option(min=16)] = 96,
    device: Annotated[str, typer.Option(help="cpu, cuda, auto.")] = "cpu",
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train the sketch-and-pointer transformer; a killed training goes on from its checkpoint."""
    from rich.console import Console
    from rich.progress import Progress

    from assay.formulas.learned import PointerConfig, SketchPointer, train_pointer, training_tasks

    config = PointerConfig(width=width, fmt=fmt, budget=budget)
    tasks = _tasks(source) if source is not None else training_tasks(books)
    held = training_tasks(30, seed=9_700, vocabulary="calibration")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("epochs", total=epochs)

        def step(p: Any) -> bool:
            progress.update(bar, completed=p.epoch, description=f"loss {p.loss:.3f}, held out {p.validation:.3f}")
            return False

        checkpoint = out.with_name(out.name + ".checkpoint")
        net, result = train_pointer(
            tasks,
            config,
            epochs=epochs,
            lr=lr,
            seed=seed,
            device=device,
            validation=held,
            checkpoint=checkpoint,
            callback=step,
        )
    SketchPointer(net.cpu()).save(out)
    checkpoint.unlink(missing_ok=True)
    typer.echo(f"{out}: loss {result.losses[-1]:.3f}, held out {result.validations[-1]:.3f}, {len(tasks)} tasks")


@app.command()
def preview(
    workbook: Book,
    where: Where,
    strategy: Annotated[str, typer.Option(help="Context strategy.")] = "dense",
    budget: Annotated[int, typer.Option(min=1, help="Tokens.")] = 1024,
    redact: Annotated[bool, typer.Option("--redact", help="Values become placeholders of their types.")] = False,
) -> None:
    """Show what would be sent to an endpoint for a cell; nothing is sent."""
    from assay.formulas.endpoint import Endpoint
    from assay.formulas.tasks import task_at
    from assay.formulas.workbook import Workbook
    from assay.llm import Client

    client = Client("http://localhost:1/v1", "preview", cache=False)
    prompt = Endpoint(client=client, strategy=strategy, budget=budget, redact=redact).preview(
        task_at(Workbook.open(workbook), where)
    )
    typer.echo(prompt.text())


@app.command()
def calibrate(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for calibration.json and joint.json.")],
    source: Annotated[Path | None, typer.Option(help="Tasks to fit on.  [default: made workbooks]")] = None,
    seed: Seed = 9_800,
) -> None:
    """Fit the scores of neighbour, aggregate and retrieval to the share that is right, on a validation split."""
    from assay.formulas.systems.calibrate import save
    from assay.formulas.systems.fitting import fit_default
    from assay.formulas.systems.joint import save_joint

    calibrations, joint = fit_default(_tasks(source) if source is not None else None, seed)
    out.mkdir(parents=True, exist_ok=True)
    save(calibrations, out / "calibration.json")
    save_joint(joint, out / "joint.json")
    for name, c in calibrations.items():
        typer.echo(f"{name}: {c.n} suggestions, from {min(c.shares):.2f} to {max(c.shares):.2f}")
