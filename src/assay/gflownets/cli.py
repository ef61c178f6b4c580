"""``assay gflownets ...``: fit a sampler to a problem of one's own, sample from it, go on with it, check an
environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="GFlowNets: diverse samples in proportion to a reward.")

Kind = Annotated[str, typer.Option("--env", help="dag, phylo, table, ising, grid, tfbind8, qm9, bits or peptides.")]
Folder = Annotated[Path, typer.Argument(help="Folder of a fit.")]


def _problem(kind: str, data: str | None, options: dict[str, Any]) -> Any:
    from assay.gflownets import problems
    from assay.gflownets.envs import Hypergrid
    from assay.gflownets.errors import GFlowNetError

    if kind in ("dag", "phylo", "table") and data is None:
        raise GFlowNetError(f"--env {kind} needs --data FILE")
    if kind == "dag":
        import pandas as pd

        return problems.DAGProblem(pd.read_csv(data), **options)  # type: ignore[arg-type]
    if kind == "phylo":
        return problems.PhyloProblem(data, **options)
    if kind == "table":
        return problems.TableProblem(data, **options)
    if kind == "ising":
        return problems.IsingProblem(data if data is not None else options.pop("n", 6), **options)
    if kind == "grid":
        found = problems.Problem()
        found.env, found.defaults = Hypergrid(**{"dim": 2, "side": 8, **options}), {}
        return found
    named = {
        "tfbind8": problems.tfbind8,
        "qm9": problems.qm9_small,
        "bits": problems.bit_sequences,
        "peptides": problems.peptides,
    }
    if kind not in named:
        raise GFlowNetError(
            f"there is no environment {kind!r}; there is dag, phylo, table, ising, grid, {', '.join(named)}"
        )
    return named[kind](**options)


def _options(text: list[str] | None) -> dict[str, Any]:
    from assay.gflownets.errors import GFlowNetError

    found: dict[str, Any] = {}
    for item in text or []:
        name, equals, value = item.partition("=")
        if not equals:
            raise GFlowNetError(f"{item!r} should read name=value")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def _open(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    from assay.gflownets.errors import GFlowNetError

    recipe = folder / "fit.json"
    if not recipe.is_file():
        raise GFlowNetError(
            f"{folder} holds no fit (there is no fit.json); make one with: assay gflownets fit --out {folder}"
        )
    made = json.loads(recipe.read_text(encoding="utf-8"))
    problem = _problem(made["env"], made["data"], dict(made["options"]))
    gfn = problem.gflownet(**made["settings"])
    if (folder / "training.npz").is_file():
        gfn.load(folder / "training.npz")
    return problem, gfn, made


@app.command()
def fit(
    env: Kind,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the fit; one that is there is gone on with.")],
    data: Annotated[str | None, typer.Option(help="CSV, FASTA, PHYLIP, NEXUS or .npy file.")] = None,
    objective: Annotated[str | None, typer.Option(help="tb, vargrad, subtb, db, fm, fldb, mdb, soft_dqn, ...")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Updates.")] = 10_000,
    batch: Annotated[int | None, typer.Option(min=1, help="Trajectories an update.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    explore: Annotated[float | None, typer.Option(help="Share of uniform actions.")] = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    option: Annotated[
        list[str] | None, typer.Option(help="name=value of the problem (score=bde, gaps=missing, ...), again for more.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Updates between checkpoints.")] = 1000,
) -> None:
    """Train a sampler; a killed fit goes on where it stopped."""
    from rich.console import Console

    given = {"objective": objective, "batch": batch, "lr": lr, "explore": explore}
    settings: dict[str, Any] = {"seed": seed, **{k: v for k, v in given.items() if v is not None}}
    recipe = {
        "env": env,
        "data": str(Path(data).resolve()) if data is not None else None,
        "options": _options(option),
        "settings": settings,
    }
    file = out / "fit.json"
    if file.is_file():
        old = json.loads(file.read_text(encoding="utf-8"))
        if {k: old[k] for k in recipe} != recipe:
            from assay.gflownets.errors import CheckpointMismatch

            raise CheckpointMismatch(
                f"{out} holds another fit ({old['env']}, {old['settings']}); choose another folder or repeat "
                f"its settings"
            )
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**recipe, "steps": steps}, indent=2), encoding="utf-8")
    _train(out, steps, every, Console())


def _train(folder: Path, steps: int, every: int, console: Any) -> None:
    from rich.progress import Progress

    _, gfn, _ = _open(folder)
    with Progress(console=type(console)(stderr=True), transient=True) as progress:
        bar = progress.add_task("training", total=steps, completed=gfn.steps)

        def each(model: Any, log: Any) -> None:
            progress.update(
                bar, completed=model.steps, description=f"loss {log.loss[-1]:.3g}, log R {log.log_r[-1]:.3f}"
            )

        gfn.fit(
            steps, eval_every=min(100, every), callback=each, checkpoint=folder / "training.npz", checkpoint_every=every
        )
    console.print(str(gfn.report()), markup=False)
    console.print(f"\nsaved in {folder.resolve()}", markup=False)


@app.command()
def resume(
    folder: Folder,
    steps: Annotated[int | None, typer.Option(min=1, help="Updates in all.  [default: those of the fit]")] = None,
    every: Annotated[int, typer.Option(min=1, help="Updates between checkpoints.")] = 1000,
) -> None:
    """Go on with a fit, to the last bit as if it had never stopped."""
    from rich.console import Console

    _, _, recipe = _open(folder)
    _train(folder, steps or int(recipe["steps"]), every, Console())


@app.command()
def sample(
    folder: Folder,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 1000,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="JSON lines are appended here; otherwise printed.")
    ] = None,
) -> None:
    """Objects with log rewards and importance weights, as JSON lines."""
    _, gfn, _ = _open(folder)
    if out is not None:
        gfn.sample_to(out, n)
        return
    found = gfn.sample(n)
    for item, r, w in zip(found.objects, found.log_r.tolist(), found.log_w.tolist(), strict=True):
        typer.echo(json.dumps({"object": item, "log_reward": r, "log_weight": w}))


@app.command("eval")
def evaluate(
    folder: Folder,
    n: Annotated[int, typer.Option("-n", min=16, help="Trajectories.")] = 4096,
    exact: Annotated[bool, typer.Option(help="Enumerate the space, for exact figures.")] = False,
) -> None:
    """Bounds on log Z, an estimate of the distance to the target, rewards."""
    _, gfn, _ = _open(folder)
    if exact:
        gfn.graph()
    typer.echo(str(gfn.report(n, limit=2_000_000)))


@app.command("check-env")
def check_environment(
    target: Annotated[str, typer.Argument(help="module:Name of an environment, or of a function that makes one.")],
    walks: Annotated[int, typer.Option(min=1, help="Random walks.")] = 50,
) -> None:
    """Check masks, moves and rewards of an environment of your own."""
    import importlib
    import sys

    from assay.gflownets.check import check_env
    from assay.gflownets.envs import Environment
    from assay.gflownets.errors import GFlowNetError

    module, colon, name = target.partition(":")
    if not colon:
        raise GFlowNetError(f"{target!r} should read module:Name")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise GFlowNetError(f"{target} cannot be imported: {error}") from error
    env = found if isinstance(found, Environment) else found()
    report = check_env(env, walks=walks)
    typer.echo(
        f"{type(env).__name__} is sound: {report.walks} walks, {report.states} states, longest {report.longest} steps"
    )


@app.command()
def bench(
    scenario: Annotated[list[str] | None, typer.Option(help="grid2, grid4, bits, tfbind8, qm9, ising or dag.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Trajectories an update, again for more.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads, and cores that are used.")] = 1,
    against: Annotated[str, typer.Option(help="gfnx, torchgfn or both (gfnx,torchgfn): needs a checkout.")] = "",
    repeats: Annotated[int, typer.Option(min=1, help="Blocks of updates.")] = 5,
) -> None:
    """Milliseconds an update on this machine, alone or in a race against other libraries."""
    import os
    import subprocess
    import sys

    from assay.gflownets.bench import SCENARIOS
    from assay.gflownets.errors import GFlowNetError

    chosen = scenario or list(SCENARIOS)
    unknown = sorted(set(chosen) - set(SCENARIOS))
    if unknown:
        raise GFlowNetError(f"there is no scenario {', '.join(unknown)}; there is {', '.join(SCENARIOS)}")
    arguments = ["--scenarios", *chosen, "--batch", *map(str, batch or [16]), "--repeats", str(repeats)]
    if against:
        script = Path(__file__).resolve().parents[3] / "benchmarks" / "gflownets.py"
        if not script.is_file():
            raise GFlowNetError(
                "the race is part of the repository, not of the installed package: clone it and run "
                "python benchmarks/gflownets.py"
            )
        rivals = ["--against", *against.split(","), "--threads", str(threads), "--skip", "compile", "extras"]
        raise typer.Exit(subprocess.run([sys.executable, str(script), *arguments, *rivals], check=False).returncode)
    one = " --xla_cpu_multi_thread_eigen=false" if threads == 1 else ""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + one}
    command = [sys.executable, "-m", "assay.gflownets.bench", *arguments]
    raise typer.Exit(subprocess.run(command, env=environment, check=False).returncode)
