"""`assay difftest ...`: compare traces, show reports, inject bugs, run the suite."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="Find silent bugs in distributed training.")

Reference = Annotated[Path, typer.Argument(help="Folder of the reference's trace.")]
Candidate = Annotated[Path, typer.Argument(help="Folder of the distributed run's trace.")]
TolOption = Annotated[
    Path | None, typer.Option("--tol", help="File of tolerances (Tolerance.save), or {pattern: value} as JSON.")
]


def _compared(reference: Path, candidate: Path, tol: Path | None, **options: Any) -> Any:
    from assay.difftest import Tolerance, Trace, compare

    return compare(Trace.open(reference), Trace.open(candidate), Tolerance.load(tol) if tol else None, **options)


def _written(result: Any, html: Path | None, junit: Path | None, json: Path | None) -> None:
    from assay.difftest.page import save_html
    from assay.difftest.report import save_json, save_junit

    for path, save in ((html, save_html), (junit, save_junit), (json, save_json)):
        if path is not None:
            typer.echo(f"wrote {save(result, path).resolve()}")


@app.command()
def compare(
    reference: Reference,
    candidate: Candidate,
    tol: TolOption = None,
    include: Annotated[list[str] | None, typer.Option(help="Only names in which this pattern is found.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Leave out names in which this pattern is found.")] = None,
    allow_extra: Annotated[
        bool, typer.Option(help="Let the candidate have modules that the reference has not.")
    ] = False,
    strict: Annotated[bool, typer.Option(help="A pass with holes is an invalid comparison.")] = False,
    resume: Annotated[Path | None, typer.Option(help="File that keeps what was compared, to go on later.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as a page.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the report as JUnit XML.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write everything as JSON.")] = None,
) -> None:
    """Compare a distributed run with the reference. Exit code 1: a finding; 2: not comparable."""
    from assay.difftest.report import gate, summary

    result = _compared(
        reference, candidate, tol, include=include or (), exclude=exclude or (), allow_extra=allow_extra, resume=resume
    )
    typer.echo(summary(result))
    _written(result, html, junit, json)
    raise typer.Exit(gate(result, allow_partial=not strict))


@app.command()
def report(
    reference: Reference,
    candidate: Candidate,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("difftest.html"),
    tol: TolOption = None,
) -> None:
    """Compare, and write the page: timeline of error over tolerance, heat map of ranks and modules, evidence."""
    _written(_compared(reference, candidate, tol), output, None, None)


@app.command()
def floor(
    reference: Reference,
    candidate: Candidate,
    tol: TolOption = None,
    top: Annotated[int, typer.Option(min=1, help="Tensors to show.")] = 20,
) -> None:
    """The smallest relative effect that the comparison could have seen, largest first."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from assay.difftest.report import floors_table

    table = Table(box=None, title="detection floor", title_justify="left")
    for head in ("tensor", "floor", "error"):
        table.add_column(head, justify="left" if head == "tensor" else "right", overflow="fold")
    for name, low, error in floors_table(_compared(reference, candidate, tol), top=top):
        table.add_row(Text(name), f"{low:.3g}", f"{error:.3g}")
    Console().print(table)


@app.command()
def bugs() -> None:
    """The bugs that the test bed can have."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from assay.difftest.testbed.bugs import BUGS

    table = Table(box=None)
    for head in ("#", "axis", "kind", "bug", "layout", "source"):
        table.add_column(head, overflow="fold")
    for bug in BUGS.values():
        table.add_row(str(bug.number), bug.axis, bug.kind, Text(bug.title), str(bug.layout), Text(bug.source))
    Console().print(table)


@app.command()
def demo(
    bug: Annotated[
        int | None, typer.Option(help="Number of a bug (assay difftest bugs); without it a correct run.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    cp: Annotated[int, typer.Option(min=1, help="Context-parallel ranks.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 1,
    vpp: Annotated[int, typer.Option(min=1, help="Virtual chunks a stage.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Expert-parallel ranks.")] = 1,
    sp: Annotated[bool, typer.Option("--sp", help="Sequence parallelism.")] = False,
    zero: Annotated[bool, typer.Option("--zero", help="ZeRO-1.")] = False,
    fsdp: Annotated[bool, typer.Option("--fsdp", help="FSDP2.")] = False,
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16 or fp8.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Keep both traces and the tolerances here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as a page.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the report as JUnit XML.")] = None,
) -> None:
    """Train a small GPT on one process and on several, with a bug or without, and compare."""
    import tempfile
    from dataclasses import replace

    from assay.difftest.report import gate, summary
    from assay.difftest.testbed.bugs import BUGS, Switches
    from assay.difftest.testbed.config import Config, Layout
    from assay.difftest.testbed.suite import compare_case

    Switches(bug)
    config, layout = (BUGS[bug].settings(), BUGS[bug].layout) if bug is not None else (Config(), Layout())
    given = {k: v for k, v in {"tp": tp, "cp": cp, "dp": dp, "pp": pp, "vpp": vpp, "ep": ep}.items() if v > 1}
    given |= {k: True for k, v in {"sp": sp, "zero": zero, "fsdp": fsdp}.items() if v}
    if given:
        layout = replace(layout, **given) if bug is not None else Layout(**given)  # type: ignore[arg-type]
    elif bug is None:
        layout = Layout(tp=2)
    if ep > 1 and not config.experts:
        config = config.with_(experts=8, ffn=64)
    if layout.tp > config.kv_heads:
        config = config.with_(kv_heads=config.heads)
    if dtype:
        config = config.with_(dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        case = compare_case(config, layout, Path(out or folder), bug=bug)
        typer.echo(
            f"{layout}, {config.dtype}, {'bug ' + str(bug) if bug else 'no bug'}: loss {case.loss:.6f} against "
            f"{case.reference_loss:.6f}"
        )
        typer.echo(summary(case.result))
        _written(case.result, html, junit, None)
    if out is not None:
        typer.echo(f"compare again: assay difftest compare {out}/reference {out}/candidate --tol {out}/tolerance.json")
    raise typer.Exit(gate(case.result))


@app.command()
def suite(
    all_: Annotated[
        bool, typer.Option("--all", help="All 26 bugs and the whole grid of correct configurations.")
    ] = False,
    bug: Annotated[list[int] | None, typer.Option(help="Number of a bug, again for more.")] = None,
    grid: Annotated[bool, typer.Option("--grid", help="The correct configurations.")] = False,
    dtype: Annotated[list[str] | None, typer.Option(help="Precision of the grid, again for more.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed of the grid, again for more.")] = None,
    limit: Annotated[int | None, typer.Option(help="Most configurations of the grid to run now.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File that keeps the results (JSON lines); goes on where it stopped."),
    ] = None,
) -> None:
    """Inject the bugs, run correct configurations, and count what is found."""
    from assay.difftest.testbed.suite import run_bugs, run_grid

    code = 0
    if all_ or bug or not grid:
        code |= run_bugs(bug or None, out=out, echo=typer.echo)
    if all_ or grid:
        code |= run_grid(
            seeds=seed or range(3), dtypes=dtype or ("fp32", "bf16", "fp8"), out=out, echo=typer.echo, limit=limit
        )
    raise typer.Exit(code)


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder of .pt files, SGLang dumps, a DCP or DeepSpeed checkpoint, or a .pt/.safetensors file."
        ),
    ],
    output: Annotated[Path, typer.Argument(help="Folder of the trace to write.")],
    kind: Annotated[str, typer.Option(help="auto, pt, sglang, dcp, deepspeed, safetensors.")] = "auto",
    phase: Annotated[str, typer.Option(help="Phase of tensors whose file does not say it.")] = "",
) -> None:
    """Turn other tools' dumps into a trace."""
    from assay.difftest.converters import convert as run

    trace = run(source, output, kind=kind, phase=phase or None)
    typer.echo(f"wrote {len(trace.names())} tensors to {output.resolve()}")
