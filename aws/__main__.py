"""Commands for a stack of target aws: `python -m aws doctor|cost|push|state|smoke|kept|preview-comment`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.table import Table

from aws import cost as costs
from aws import destroy as destroying
from aws import doctor as doctors
from aws import plan as plans
from aws import preview_comment as comments
from aws import push as pushing
from aws import smoke as smoking
from aws import state as states
from aws.stack import CommandError, Stack, clients, configuration, outputs, partition, read, run
from infra import chart_values, policies
from infra.problems import SettingsError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What goes with a stack of target aws.")
out = Console(soft_wrap=True, highlight=False)

StackName = Annotated[str, typer.Option("--stack", help="The stack: Pulumi.<stack>.yaml.")]
Folder = Annotated[Path, typer.Option("--folder", help="The project's folder.")]
Base = Annotated[str, typer.Option("--base", help="Base image: Debian 12 with Python 3.11.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE of a change, such as nodes.desired=1.")
]

PROJECT = Path(__file__).resolve().parent.parent
BASE = "python:3.11-slim-bookworm"
_MARKS = {"ok": "[green]ok[/]", "unknown": "[yellow]??[/]", "warn": "[yellow]!![/]", "bad": "[red]no[/]"}


@app.command()
def doctor(stack: StackName, folder: Folder = PROJECT) -> None:
    """What stands between this stack and `pulumi up`; changes nothing."""
    known = read(folder, stack)
    findings = doctors.examine(known, clients(known.region))
    for finding in findings:
        out.print(_MARKS[finding.level], finding.what, markup=True)
        if finding.mend != "":
            out.print(f"     → {finding.mend}", markup=False)
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)


@app.command()
def cost(stack: StackName, changes: Changes = None, folder: Folder = PROJECT) -> None:
    """What this stack costs an hour by part, and with --set what a change does to it."""
    before = read(folder, stack)
    changes = changes or ["compute=off"]
    columns = {}
    for label, of in (("now", before), (", ".join(changes), read(folder, stack, changes))):
        columns[label] = list(costs.parts(of.settings))
        if of.settings.nodes.auto and of.settings.compute == "on":
            columns[f"{label}, and nothing trains"] = list(costs.parts(of.settings, of.settings.nodes.min))
    table = Table("$ an hour", *columns)
    names = list(dict.fromkeys(part.name for parts in columns.values() for part in parts))
    for name in names:
        cells = [_cell(next((p for p in parts if p.name == name), None)) for parts in columns.values()]
        table.add_row(name, *cells)
    table.add_section()
    table.add_row("sum", *(f"{costs.total(parts):.3f}" for parts in columns.values()))
    hours = costs.HOURS_PER_MONTH
    table.add_row("a month of it", *(f"{costs.total(parts) * hours:.0f}" for parts in columns.values()))
    out.print(table)
    known = costs.prices()
    out.print("By use: " + "; ".join(f"{name} {price}" for name, price in costs.by_usage()))
    elsewhere = "" if before.region == known["region"] else f" {before.region} may cost more or less."
    out.print(f"List prices of {known['region']} as of {known['date']} (aws/prices.yaml).{elsewhere}")


@app.command()
def plan(
    stack: StackName,
    *,
    rows: Annotated[float, typer.Option(help="Rows of the training data.")] = 0,
    gigabytes: Annotated[float, typer.Option("--gb", help="Size of the source, 10⁹ bytes.")] = 0,
    passes: int = 1,
    ids: Annotated[float, typer.Option(help="Different ids over all tables.")] = 0,
    rates: Annotated[Path | None, typer.Option(help="Your own rates, over aws/rates.yaml.")] = None,
    after: Annotated[Path | None, typer.Option(help="Results of a run: what it did cost.")] = None,
    changes: Changes = None,
    folder: Folder = PROJECT,
) -> None:
    """What a training needs and costs, from rows, size, passes and ids; or what a run did cost."""
    settings, known = read(folder, stack, changes or []).settings, plans.rates(rates)
    if after is not None:
        pods, hours, dollars, train_us = plans.spent(after, settings, known)
        out.print(f"{pods} pods for {hours:.2f} h at the stack's price: ${dollars:.2f}")
        out.print(f"a plan says the same of its training with train_us: {train_us:.3g} in RATES")
        return
    if min(rows, gigabytes, passes) <= 0 or ids < 0:
        raise CommandError(
            f"rows {rows:g}, GB {gigabytes:g} and passes {passes} must be above 0, ids {ids:g} not below"
        )
    values = chart_values.effective(settings, folder)
    trainers, batch = int(values.get("trainers", 1)), int(values.get("training", {}).get("batchSize", 256))
    job, room = plans.Job(rows, gigabytes, passes, ids, batch), plans.node(settings)
    least = max(plans.least_pods(job, room, known), trainers)
    found = [plans.plan(job, settings, least * times, known) for times in (1, 2, 4)]
    table = Table("pods, one a node", *(str(one.pods) for one in found))
    table.add_row(
        f"memory of a pod, GiB (of {room.memory / 2**30:.1f})", *(f"{p.train.memory_gib:.1f}" for p in found)
    )
    table.add_row("network of a pod each way, MB/s", *(f"{p.train.network_mb:.0f}" for p in found))
    table.add_row("CPU of a row, µs", *(f"{p.train.row_us:.0f}" for p in found))
    disk = settings.nodes.disk_gib
    small = [f"{p.disk_gib:.0f}{' !!' if p.disk_gib > disk else ''}" for p in found]
    table.add_row(f"disk of a node, GiB (nodes.diskGib {disk}; !! needs more)", *small)
    for step in found[0].hours:
        table.add_row(f"{step}, hours", *(f"{p.hours[step]:.2f}" for p in found))
    table.add_section()
    table.add_row("hours", *(f"{sum(p.hours.values()):.2f}" for p in found))
    table.add_row("dollars", *(f"{p.dollars:.2f}" for p in found))
    out.print(table)
    out.print(
        f"The stack's values have {trainers} trainers and batches of {batch}. Rates were measured on one"
    )
    out.print(
        "machine (aws/rates.yaml): a network costs more. After a run, make plan AFTER=results says what it"
    )
    out.print("was.")


def _cell(part: costs.Part | None) -> str:
    if part is None:
        return "-"
    return (
        "not in the table" if part.per_hour is None else f"{part.per_hour:.3f}  ({part.count:g} {part.unit})"
    )


@app.command()
def push(
    stack: StackName,
    base: Base = BASE,
    builder: str = "",
    folder: Folder = PROJECT,
    upon: Annotated[
        Path | None, typer.Option("--from", help="Folder with a Dockerfile upon the launcher's image.")
    ] = None,
) -> None:
    """Builds the image, pushes it to the stack's registry and writes its digest to the stack's settings."""
    image = _push(read(folder, stack), base, builder, upon)
    out.print(f"image {image}\nnext: pulumi up --stack {stack}")


def _push(known: Stack, base: str, builder: str, upon: Path | None = None) -> str:
    url = outputs(known.folder, known.name).get("registry")
    if url is None:
        raise CommandError(f"stack {known.name} has no registry yet: pulumi up --stack {known.name} makes it")
    types = known.settings.nodes.instance_types
    ecr = clients(known.region)("ecr")
    image = pushing.push(
        str(url), known.folder / "launcher", types, base=base, ecr=ecr, tool=builder, upon=upon
    )
    run(pushing.config_argv(known.name, image), known.folder)
    return image


@app.command()
def state(stack: StackName, folder: Folder = PROJECT) -> None:
    """Makes a bucket for Pulumi's state and a key for its secrets, and prints the commands that use them."""
    known = read(folder, stack)
    prepared = states.prepare(clients(known.region), known.region)
    out.print(f"# bucket {prepared.bucket} and key {policies.STATE_ALIAS} are ready; next:")
    for line in states.next_steps(prepared, stack):
        out.print(line, markup=False)


@app.command(name="iam-policy")
def iam_policy(
    stack: StackName,
    who: Annotated[Literal["deployer", "preview"], typer.Option("--for", help="Who gets it.")] = "deployer",
    to: Annotated[Path, typer.Option("--to", help="Folder for the documents.")] = Path("iam-policies"),
    folder: Folder = PROJECT,
) -> None:
    """Writes the IAM documents of the deployer, or of the role that previews pull requests."""
    place = partition(configuration(folder, stack).get("aws:region", ""))
    documents = policies.deployer() if who == "deployer" else policies.preview(place)
    to.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(documents, 1):
        name = f"paddle-training-{who}-{number}"
        path = to / f"{name}.json"
        path.write_text(json.dumps(json.loads(text), indent=2) + "\n", encoding="utf-8")
        out.print(f"aws iam create-policy --policy-name {name} --policy-document file://{path}")
        arn = f"arn:{place}:iam::ACCOUNT:policy/{name}"
        out.print(f"aws iam attach-role-policy --role-name ROLE --policy-arn {arn}")


@app.command()
def smoke(
    stack: StackName,
    *,
    base: Base = BASE,
    results: Annotated[Path, typer.Option("--to", help="Folder for the results.")] = Path("smoke-results"),
    yes: Annotated[bool, typer.Option("--yes", help="Yes, it may cost money.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack as it is at the end.")] = False,
    folder: Folder = PROJECT,
) -> None:
    """Up, train, results, destroy, residue by tag: in a real account."""
    known = read(folder, stack)
    price = costs.total(costs.parts(known.settings))
    if not yes:
        raise CommandError(
            f"this makes real resources at some ${price:.2f} an hour; say YES=1 (--yes) to go on"
        )
    if known.settings.storage.protect and not keep:
        mend = f"pulumi config set --path storage.protect false --stack {stack}"
        raise CommandError(
            f"storage.protect is true, so a destroy would leave things behind by design: {mend}"
        )
    bad = [f for f in doctors.examine(known, clients(known.region)) if f.level == "bad"]
    if bad:
        raise CommandError("\n".join(f"{f.what}\n  → {f.mend}" for f in bad))
    to, client = results.resolve(), clients(known.region)
    left = smoking.smoke(known, client, base=base, results=to, say=out.rule, keep=keep)
    if left:
        raise CommandError("still there after destroy:\n" + "\n".join(left))
    out.print(f"done; results are in {results}")


@app.command()
def destroy(
    stack: StackName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    folder: Folder = PROJECT,
) -> None:
    """Says what goes and what stays, asks, and removes the stack."""
    known = read(folder, stack)
    exported = json.loads(run(["pulumi", "stack", "export", "--stack", stack], folder, capture=True))
    planned = destroying.plan(exported, stack, known.settings.storage.protect)
    out.print(
        f"{planned.removed} resources of stack {stack} go: {outputs(folder, stack).get('destroyLoses')}"
    )
    for line in [f"  goes: {name}" for name in planned.goes] + [f"  stays: {name}" for name in planned.stays]:
        out.print(line, markup=False)
    if not yes and typer.prompt(f"type {stack} to go on", default="", show_default=False) != stack:
        raise CommandError("nothing was removed")
    run(destroying.argv(stack), folder)


@app.command()
def kept(stack: StackName, folder: Folder = PROJECT) -> None:
    """What carries this stack's tags in the account: after a destroy, what the destroy left."""
    known = read(folder, stack)
    left = smoking.residue(known, clients(known.region))
    out.print("\n".join(left) if left else f"nothing carries the tags of stack {stack}", markup=False)


@app.command(name="preview-comment")
def preview_comment(
    stack: StackName,
    base: Annotated[Path, typer.Option("--base", help="Checkout of the pull request's base.")],
    to: Annotated[Path, typer.Option("--to", help="File for the comment.")],
    head: Annotated[Path, typer.Option("--head", help="Checkout of its head.")] = PROJECT,
) -> None:
    """Writes the comment for a pull request; ends with the preview's exit code."""
    found = comments.report(stack, base.resolve(), head.resolve())
    to.write_text(comments.comment(found), encoding="utf-8")
    raise typer.Exit(found.code)


def main() -> int:
    """Runs a command; every mistake is one message on stderr."""
    try:
        app()
    except (CommandError, SettingsError) as error:
        sys.stderr.write(f"{error}\n")
        return 64 if isinstance(error, SettingsError) else 1
    except (ClientError, BotoCoreError) as error:
        sys.stderr.write(f"AWS: {' '.join(str(error).split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
