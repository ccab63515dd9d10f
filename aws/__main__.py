"""Commands for a stack of target aws: `python -m aws COMMAND --stack dev`, or `make COMMAND STACK=dev`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aws import cost, destroy, doctor, plan, preview_comment, push, smoke, state
from aws.stack import FOLDER, CommandError, clients, read
from infra import chart_values, policies
from infra.problems import SettingsError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Commands for the owner of an AWS stack.")
out = Console(soft_wrap=True, highlight=False, markup=False)

StackName = Annotated[str, typer.Option("--stack", help="The stack: Pulumi.<stack>.yaml.")]
Base = Annotated[str, typer.Option(help="Base image: Debian 12 with Python 3.11.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Setting to change, as KEY=VALUE, such as nodes.desired=1.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

BASE = "python:3.11-slim-bookworm"
_MARKS = {"ok": "[green]ok[/]", "unknown": "[yellow]??[/]", "warn": "[yellow]!![/]", "bad": "[red]no[/]"}


@app.command("doctor")
def examine(stack: StackName) -> None:
    """Check account, region, quotas, rights and image before `pulumi up`; change nothing."""
    known = read(stack)
    findings = doctor.examine(known, clients(known.region))
    for finding in findings:
        out.print(Text.from_markup(_MARKS[finding.level]), finding.what)
        if finding.fix != "":
            out.print(f"     → {finding.fix}")
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)


@app.command("cost")
def show_cost(stack: StackName, changes: Changes = None) -> None:
    """Show the hourly cost of this stack by part, and with --set the effect of a change."""
    changes = changes or ["compute=off"]
    columns = {}
    for label, of in (("now", []), (", ".join(changes), changes)):
        settings = read(stack, of).settings
        columns[label] = {part.name: part for part in cost.parts(settings)}
        if settings.nodes.auto and settings.compute == "on":
            idle = cost.parts(settings, settings.nodes.min)
            columns[f"{label}, idle"] = {part.name: part for part in idle}
    table = Table("$ an hour", *columns)
    for name in dict.fromkeys(name for parts in columns.values() for name in parts):
        table.add_row(name, *(str(parts.get(name, "-")) for parts in columns.values()))
    table.add_section()
    sums = [cost.total(parts.values()) for parts in columns.values()]
    table.add_row("sum", *(f"{dollars:.3f}" for dollars in sums))
    table.add_row("sum for a month", *(f"{dollars * cost.HOURS_PER_MONTH:.0f}" for dollars in sums))
    out.print(table)
    known = cost.prices()
    out.print("Billed by use: " + "; ".join(f"{row['name']} {row['price']}" for row in known["usage"]))
    out.print(
        f"List prices of {known['region']} as of {known['date']} (aws/prices.yaml); other regions differ."
    )


@app.command("plan")
def show_plan(
    stack: StackName,
    *,
    rows: Annotated[float, typer.Option(help="Rows of the training data.")] = 0,
    gigabytes: Annotated[float, typer.Option("--gb", help="Size of the source, 10⁹ bytes.")] = 0,
    passes: int = 1,
    ids: Annotated[float, typer.Option(help="Distinct ids over all tables.")] = 0,
    rates: Annotated[Path | None, typer.Option(help="File with rates that override aws/rates.yaml.")] = None,
    after: Annotated[
        Path | None, typer.Option(help="Results folder of a finished run: calculate what it cost.")
    ] = None,
    changes: Changes = None,
) -> None:
    """Estimate what a training needs and costs, or calculate what a finished run cost."""
    settings, known = read(stack, changes or []).settings, plan.rates(rates)
    if after is not None:
        pods, hours, dollars, train_us = plan.spent(after, settings, known)
        out.print(f"{pods} pods for {hours:.2f} h at the stack's price: ${dollars:.2f}")
        out.print(f"to make `plan` estimate the same training time, set train_us: {train_us:.3g} in RATES")
        return
    if min(rows, gigabytes, passes) <= 0 or ids < 0:
        given = f"rows ({rows:g}), GB ({gigabytes:g}) and passes ({passes})"
        raise CommandError(f"{given} must be above 0, and ids ({ids:g}) at least 0")
    values = chart_values.effective(settings, FOLDER)
    trainers, batch = int(values.get("trainers", 1)), int(values.get("training", {}).get("batchSize", 256))
    job, room = plan.Job(rows, gigabytes, passes, ids, batch), plan.node(settings)
    least = max(plan.least_pods(job, room, known), trainers)
    found = [plan.plan(job, settings, least * times, known) for times in (1, 2, 4)]
    disk = settings.nodes.disk_gib
    table = Table("pods, one a node", *(str(one.pods) for one in found))
    memory = f"memory of a pod, GiB (of {room.memory / 2**30:.1f})"
    table.add_row(memory, *(f"{one.train.memory_gib:.1f}" for one in found))
    table.add_row("network of a pod each way, MB/s", *(f"{one.train.network_mb:.0f}" for one in found))
    table.add_row("CPU of a row, µs", *(f"{one.train.row_us:.0f}" for one in found))
    small = [f"{one.disk_gib:.0f}{' !!' if one.disk_gib > disk else ''}" for one in found]
    table.add_row(f"disk of a node, GiB (nodes.diskGib {disk}; !! needs more)", *small)
    for step in found[0].hours:
        table.add_row(f"{step}, hours", *(f"{one.hours[step]:.2f}" for one in found))
    table.add_section()
    table.add_row("hours", *(f"{sum(one.hours.values()):.2f}" for one in found))
    table.add_row("dollars", *(f"{one.dollars:.2f}" for one in found))
    out.print(table)
    out.print(f"The stack's values have {trainers} trainers and batches of {batch}.")
    out.print(
        "The rates of aws/rates.yaml were measured on one machine; traffic between machines costs more."
    )
    out.print("After a run, `make plan AFTER=results` calculates its actual cost.")


@app.command("push")
def push_image(
    stack: StackName,
    base: Base = BASE,
    upon: Annotated[
        Path | None, typer.Option("--from", help="Folder with a Dockerfile based on the launcher image.")
    ] = None,
) -> None:
    """Build the image, push it to the stack's registry and write its digest to the stack's settings."""
    known = read(stack)
    url = known.outputs().get("registry")
    if url is None:
        raise CommandError(f"stack {stack} has no registry yet. Fix: pulumi up --stack {stack}")
    kind, ecr = known.settings.nodes.instance_types[0], clients(known.region)("ecr")
    image = push.push(url, FOLDER / "launcher", kind, base=base, ecr=ecr, upon=upon)
    known.pulumi("config", "set", "paddle-training:image", image)
    out.print(f"image {image}\nnext: pulumi up --stack {stack}")


@app.command("state")
def make_state(stack: StackName) -> None:
    """Create a bucket for Pulumi's state and a key for its secrets; print the commands that use them."""
    known = read(stack)
    made = state.prepare(clients(known.region), known.region)
    out.print(f"# bucket {made.bucket} and key {policies.STATE_ALIAS} are ready; next:")
    out.print(f"pulumi login '{made.backend}'")
    out.print(f"pulumi stack init {stack} --secrets-provider '{made.secrets}'")
    out.print("# or, for a stack that this backend already has:")
    out.print(f"pulumi stack change-secrets-provider '{made.secrets}' --stack {stack}")


@app.command("iam-policy")
def write_policies(
    stack: StackName,
    who: Annotated[
        Literal["deployer", "preview"], typer.Option("--for", help="Who the documents are for.")
    ] = "deployer",
    to: Annotated[Path, typer.Option(help="Folder for the documents.")] = Path("iam-policies"),
) -> None:
    """Write the IAM policy documents of the deployer, or of the role that previews pull requests."""
    place = clients(read(stack).region)("iam").meta.partition
    documents = policies.deployer() if who == "deployer" else policies.preview(place)
    to.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(documents, 1):
        name = f"paddle-training-{who}-{number}"
        path = to / f"{name}.json"
        path.write_text(json.dumps(json.loads(text), indent=2) + "\n", encoding="utf-8")
        out.print(f"aws iam create-policy --policy-name {name} --policy-document file://{path}")
        policy = f"arn:{place}:iam::ACCOUNT:policy/{name}"
        out.print(f"aws iam attach-role-policy --role-name ROLE --policy-arn {policy}")


@app.command("smoke")
def try_all(
    stack: StackName,
    *,
    base: Base = BASE,
    results: Annotated[Path, typer.Option("--to", help="Folder for the results.")] = Path("smoke-results"),
    yes: Yes = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not destroy the stack at the end.")] = False,
) -> None:
    """Run up, training, results, destroy and a search for leftovers in a real AWS account."""
    known = read(stack)
    client, price = clients(known.region), cost.total(cost.parts(known.settings))
    if not yes:
        raise CommandError(
            f"this creates real resources at about ${price:.2f} an hour. To confirm, add --yes (make: YES=1)"
        )
    if known.settings.compute == "off":
        raise CommandError(f"compute is off, so no training can run. Fix: {known.setting('compute', 'on')}")
    if known.settings.storage.protect and not keep:
        fix = known.setting("storage.protect", "false")
        raise CommandError(f"storage.protect is true, so destroy would keep the data. Fix: {fix}")
    bad = [finding for finding in doctor.examine(known, client) if finding.level == "bad"]
    if bad:
        raise CommandError("\n".join(f"{finding.what}\n  → {finding.fix}" for finding in bad))
    left = smoke.smoke(known, client, base=base, results=results.resolve(), say=out.rule, keep=keep)
    if left:
        raise CommandError("resources that still exist after destroy:\n" + "\n".join(left))
    out.print(f"done; results are in {results}")


@app.command("destroy")
def remove(stack: StackName, yes: Yes = False) -> None:
    """List what will be removed and kept, ask for confirmation, and destroy the stack."""
    known = read(stack)
    exported = json.loads(known.pulumi("stack", "export", capture=True))
    planned = destroy.plan(exported, stack, known.settings.storage.protect)
    out.print(
        f"{planned.removed} resources of stack {stack} are removed: {known.outputs().get('destroyLoses')}"
    )
    for line in [f"  removed: {name}" for name in planned.goes] + [
        f"  kept: {name}" for name in planned.stays
    ]:
        out.print(line)
    if not yes and typer.prompt(f"type {stack} to continue", default="", show_default=False) != stack:
        raise CommandError("nothing was removed")
    known.pulumi(*destroy.ARGUMENTS)


@app.command("kept")
def show_kept(stack: StackName) -> None:
    """List the resources with this stack's tags; after a destroy, those that it kept."""
    known = read(stack)
    left = smoke.residue(known, clients(known.region))
    out.print("\n".join(left) if left else f"no resource has the tags of stack {stack}")


@app.command("preview-comment")
def write_comment(
    stack: StackName,
    base: Annotated[Path, typer.Option(help="Checkout of the pull request's base.")],
    to: Annotated[Path, typer.Option(help="File for the comment.")],
) -> None:
    """Write the comment for a pull request; exit with the preview's exit code."""
    code, text, why = preview_comment.preview(stack)
    chart = preview_comment.chart_diff(base.resolve(), FOLDER, stack)
    to.write_text(preview_comment.comment(stack, code, text, chart, why), encoding="utf-8")
    raise typer.Exit(code)


def main() -> int:
    """Run a command; print every error as one message on stderr."""
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
