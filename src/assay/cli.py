"""The command `assay`. A field is imported when one of its words is used, not before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from assay.core.errors import AssayError
from assay.core.registry import FIELDS, Benchmarks, import_field

if TYPE_CHECKING:
    from assay.core.results import Results


class _FieldGroup(TyperGroup):
    """The verbs of a field; its module is imported when one is asked for."""

    @property
    def _commands(self) -> Any:
        return typer.main.get_command(import_field(str(self.name), "cli").app)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._commands.list_commands(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._commands.get_command(ctx, cmd_name)


class _Root(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(f.name for f in FIELDS.values() if f.present and f.has_commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        field = FIELDS.get(cmd_name)
        if field is not None and field.present and field.has_commands:
            return _FieldGroup(name=field.name, help=f"{field.what[0].upper()}{field.what[1:]}.", no_args_is_help=True)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Errors of ours are one line and exit code 2; Ctrl-C is 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            typer.echo(str(error) or "interrupted", err=True)
            raise typer.Exit(130) from None
        except Exception as error:
            # the errors of a field are ValueErrors of its own
            if isinstance(error, AssayError) or type(error).__module__.startswith("assay."):
                typer.echo(f"assay: {error}", err=True)
                raise typer.Exit(2) from None
            raise


app = typer.Typer(
    cls=_Root,
    help="Nineteen research systems, each usable on its own, all compared under one protocol.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)

Plugin = Annotated[
    list[Path] | None, typer.Option("--plugin", help="Python file that adds methods, tasks or benchmarks.")
]
StoreOption = Annotated[Path | None, typer.Option("--store", help="Folder of runs.  [default: $ASSAY_RUNS or runs]")]
Names = Annotated[str, typer.Argument(metavar="BENCHMARK", help="A field, or a benchmark of a plug-in.")]


def _benchmarks(plugins: list[Path] | None) -> Benchmarks:
    benchmarks = Benchmarks()
    for plugin in plugins or ():
        benchmarks.load_plugin(plugin)
    return benchmarks


@app.command("list")
def list_(
    benchmark: Annotated[str | None, typer.Argument(help="Show its tasks, methods and metrics.")] = None,
    plugin: Plugin = None,
) -> None:
    """Fields, or what one of them holds."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if benchmark is None:
        table = Table(box=None, pad_edge=False)
        for head in ("field", "system", "what it does", ""):
            table.add_column(head)
        for field in FIELDS.values():
            table.add_row(
                field.name,
                field.system,
                field.what,
                "" if field.present else "not yet",
                style=None if field.present else "dim",
            )
        for name in _benchmarks(plugin) if plugin else ():
            if name not in FIELDS:
                table.add_row(name, "plug-in", "", "")
        console.print(table)
        return
    chosen = _benchmarks(plugin)[benchmark]
    console.print(f"{chosen.title} ({chosen.name}, protocol version {chosen.version})", style="bold", markup=False)
    for head, rows in (
        ("task", [(t.name, t.title or t.description) for t in chosen.tasks.values()]),
        ("method", [(m.name, m.title or m.description) for m in chosen.methods.values()]),
        (
            "metric",
            [
                (m.name, f"{m.title}, {'higher' if m.higher_is_better else 'lower'} is better")
                for m in chosen.metrics.values()
            ],
        ),
    ):
        table = Table(box=None, pad_edge=False)
        table.add_column(head)
        table.add_column("")
        for row in rows:
            table.add_row(*map(_plain_text, row))
        console.print(table)
        console.print()


@app.command()
def run(
    benchmark: Names,
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="Task, again for more.  [default: all]")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", help="Method, again for more; 'olvf(C=1)' sets parameters.  [default: all]"),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Such as 0-4 or 0,7,9.  [default: the benchmark's]")] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", min=0, help="Worker processes; 0 runs in this one.")] = 0,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: auto, local, or its address.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds for one run.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory for one run, such as 4GB.")] = None,
    device: Annotated[str, typer.Option(help="Device for methods that use one.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="The small grid: about a minute.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run again what failed before.")] = False,
    metric: Annotated[str | None, typer.Option(help="Metric of the table that is shown at the end.")] = None,
    plugin: Plugin = None,
    store: StoreOption = None,
) -> None:
    """Run a grid of tasks x methods x seeds; what is on record already is not run again."""
    chosen = _benchmarks(plugin)[benchmark]
    if metric is not None:
        chosen.get_metric(metric)
    results = chosen.run(
        task or None,
        method or None,
        parse_seeds(seeds) if seeds else None,
        store=store,
        workers=workers,
        ray=ray,
        timeout=timeout,
        memory=parse_bytes(memory) if memory else None,
        device=device,
        retry_failed=retry_failed,
        quick=quick,
    )
    _show(results, metric)
    raise typer.Exit(results.exit_code)


@app.command()
def show(
    benchmark: Names,
    metric: Annotated[str | None, typer.Option(help="Metric of the table.")] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", help="Only this task.")] = None,
    format: Annotated[str, typer.Option("--format", "-f", help="text, markdown, latex or csv.")] = "text",
    plugin: Plugin = None,
    store: StoreOption = None,
) -> None:
    """The leaderboard of what is on record."""
    results = _stored(benchmark, plugin, store)
    if format == "text":
        _show(results, metric, task)
        return
    writers = {"markdown": results.to_markdown, "latex": results.to_latex, "csv": results.to_csv}
    if format not in writers:
        from assay.core.errors import UnknownNameError

        raise UnknownNameError("format", format, ["text", *writers])
    typer.echo(writers[format](metric=metric, task=task))


@app.command()
def report(
    benchmark: Annotated[list[str], typer.Argument(metavar="BENCHMARK...", help="One or more; a section each.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    plugin: Plugin = None,
    store: StoreOption = None,
) -> None:
    """One HTML page with everything on record; opens without a network."""
    from assay.core.report import write_report

    benchmarks = _benchmarks(plugin)
    results = [_checked(benchmarks[name].results(store)) for name in benchmark]
    path = write_report(output, results, title=title)
    typer.echo(f"wrote {path.resolve()}")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
    workers: Annotated[int, typer.Option("--workers", "-w", min=0)] = 2,
    store: StoreOption = None,
) -> None:
    """A quick grid of every field that is there, on data that needs no network, and a report of it."""
    from rich.console import Console

    from assay.core.errors import MissingExtraError
    from assay.core.report import write_report

    console = Console()
    collected = []
    benchmarks = Benchmarks()
    for field in FIELDS.values():
        if not field.present:
            continue
        try:
            benchmark = benchmarks[field.name]
        except MissingExtraError as error:
            console.print(f"{field.name}: left out ({error})", markup=False, style="yellow")
            continue
        collected.append(benchmark.run(quick=True, workers=workers, store=store))
    for results in collected:
        _show(results)
    if not collected:
        raise AssayError("no field is installed; install one with: pip install 'assay[streams]'")
    path = write_report(output, collected, title="assay demo")
    console.print(f"\nThe report is at {path.resolve()}", markup=False)
    raise typer.Exit(max(results.exit_code for results in collected))


@app.command()
def check(
    benchmark: Names,
    method: Annotated[str, typer.Argument(help="A method, usually of a plug-in.")],
    task: Annotated[str | None, typer.Option("--task", "-t", help="Task to try it on.")] = None,
    plugin: Plugin = None,
) -> None:
    """Test a method of your own: what every method must hold before its results mean anything."""
    from assay.core.check import check_method

    chosen = _benchmarks(plugin)[benchmark]
    outcome = check_method(chosen, chosen.get_method(method), task=task)
    typer.echo(str(outcome))
    raise typer.Exit(int(not outcome.passed))


data_app = typer.Typer(help="Public data sets: what there is, and getting it.", no_args_is_help=True)
app.add_typer(data_app, name="data")


def _sources(field: str | None) -> list[Any]:
    from assay.core.errors import MissingExtraError

    names = [field] if field else [f.name for f in FIELDS.values() if f.present]
    sources: list[Any] = []
    for name in names:
        try:
            sources += getattr(import_field(name, "data"), "SOURCES", {}).values()
        except MissingExtraError as error:
            if field:
                raise
            typer.echo(f"{name}: left out ({error})", err=True)
    return sources


@data_app.command("list")
def data_list(
    field: Annotated[str | None, typer.Argument(help="Only of this field.")] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Files, whether they are here, their licences and citations."""
    from rich.console import Console
    from rich.table import Table

    from assay.core.data import describe, to_json

    sources = _sources(field)
    if json:
        typer.echo(to_json(sources))
        return
    table = Table(box=None, pad_edge=False)
    for head in ("field", "file", "state", "licence", "cite"):
        table.add_column(head, overflow="fold")
    for row in map(describe, sources):
        table.add_row(*(_plain_text(row[key]) for key in ("field", "file", "state", "licence", "citation")))
    Console().print(table)


@data_app.command("get")
def data_get(
    field: Annotated[str, typer.Argument(help="The field.")],
    file: Annotated[list[str] | None, typer.Argument(help="Files.  [default: all that can be downloaded]")] = None,
) -> None:
    """Download files into the cache."""
    from assay.core.errors import UnknownNameError

    by_name = {source.filename: source for source in _sources(field)}
    for name in file or [n for n, s in by_name.items() if s.url]:
        if name not in by_name:
            raise UnknownNameError("data file", name, by_name, field)
        typer.echo(f"{name}: {by_name[name].fetch()}")


@app.command()
def version() -> None:
    """Version of the library."""
    from assay import __version__

    typer.echo(__version__)


def _stored(name: str, plugin: list[Path] | None, store: Path | None) -> Results:
    return _checked(_benchmarks(plugin)[name].results(store))


def _checked(results: Results) -> Results:
    for problem in results.store.problems(results.benchmark.name):
        typer.echo(f"skipped {problem.path}: {problem.reason}", err=True)
    if not len(results):
        raise AssayError(
            f"{results.store.root} holds no run of {results.benchmark.name} "
            f"(protocol version {results.benchmark.version}); "
            f"make some with: assay run {results.benchmark.name} --quick"
        )
    return results


def _show(results: Results, metric: str | None = None, task: str | None = None) -> None:
    from rich.console import Console

    from assay.core.report import show as show_results

    show_results(results, Console(), metric=metric, task=task)


def _plain_text(value: object) -> Any:
    from rich.text import Text

    return Text(str(value))


def parse_seeds(text: str) -> list[int]:
    """``"0-4"``, ``"0,7,9"`` or both.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            low = int(first)
            high = int(last) if dash else low
        except ValueError:
            raise AssayError(f"cannot read the seeds {text!r}; write 0-4 or 0,7,9") from None
        if high < low:
            raise AssayError(f"the range of seeds {part.strip()!r} is empty")
        seeds.extend(range(low, high + 1))
    return list(dict.fromkeys(seeds))


def parse_bytes(text: str) -> int:
    """``"4GB"`` in bytes; units are powers of 1024.

    >>> parse_bytes("1.5 GB")
    1610612736
    """
    units = {"": 1, "B": 1, "K": 2**10, "KB": 2**10, "M": 2**20, "MB": 2**20, "G": 2**30, "GB": 2**30}
    number = text.strip().rstrip("KMGBkmgbi ")
    unit = text.strip()[len(number) :].strip().upper().replace("I", "")
    try:
        return int(float(number) * units[unit])
    except (ValueError, KeyError):
        raise AssayError(f"cannot read the memory size {text!r}; write 500MB or 4GB") from None


_MANY = ("--task", "-t", "--method", "-m", "--plugin")


def _spread(words: list[str]) -> list[str]:
    """``--method olvf nb3`` as ``--method olvf --method nb3``.

    >>> _spread(["run", "streams", "--method", "olvf", "nb3", "--quick"])
    ['run', 'streams', '--method', 'olvf', '--method', 'nb3', '--quick']
    """
    spread: list[str] = []
    current = ""
    for word in words:
        if word.startswith("-"):
            current = word if word in _MANY else ""
            spread.append(word)
        elif current and spread[-1] != current:
            spread += [current, word]
        else:
            spread.append(word)
    return spread


def main() -> None:
    """Entry point of the command."""
    app(_spread(sys.argv[1:]))


if __name__ == "__main__":
    main()
