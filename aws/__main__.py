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

from aws import destroy_plan, doctor, hourly_cost, image_push, smoke_test, state_backend
from aws.stack_access import FOLDER, CommandError, make_clients, read_stack
from infra import chart_values, iam_policies
from infra.settings import SettingsError, load_settings, read_stack_config

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Commands for the owner of an AWS stack.")
out = Console(soft_wrap=True, highlight=False, markup=False)

StackName = Annotated[str, typer.Option("--stack", help="The stack: Pulumi.<stack>.yaml.")]
Base = Annotated[
    str,
    typer.Option(
        help="Base image of the launcher image: Debian with Python 3.11; runtime collective: 3.10 to 3.13."
    ),
]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Setting to change, as KEY=VALUE, such as nodes.desired=1.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

BASE = "python:3.11-slim-bookworm"
_MARKS = {"ok": "[green]ok[/]", "unknown": "[yellow]??[/]", "warn": "[yellow]!![/]", "bad": "[red]no[/]"}


@app.command("doctor")
def examine(stack: StackName) -> None:
    """Check account, region, quotas, rights and image before `pulumi up`; change nothing."""
    target = read_stack(stack)
    findings = doctor.run_checks(target, make_clients(target.region))
    for finding in findings:
        out.print(Text.from_markup(_MARKS[finding.level]), finding.what)
        if finding.fix != "":
            out.print(f"     → {finding.fix}")
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)


@app.command("cost")
def show_cost(
    stack: StackName,
    *,
    gigabytes: Annotated[float, typer.Option("--gb", help="Data on the file system, 10⁹ bytes.")] = 0,
    changes: Changes = None,
) -> None:
    """Show the hourly cost of this stack by part: now, and after a change of the settings.

    --set specifies the change; the default is compute=off.
    """
    changes = changes or ["compute=off"]
    columns = {}
    for label, of in (("now", []), (", ".join(changes), changes)):
        settings = read_stack(stack, of).settings
        columns[label] = {part.name: part for part in hourly_cost.cost_items(settings, None, gigabytes)}
        if settings.nodes.auto and settings.compute == "on":
            idle = hourly_cost.cost_items(settings, settings.nodes.min, gigabytes)
            columns[f"{label}, idle"] = {part.name: part for part in idle}
    table = Table("$ an hour", *columns)
    for name in dict.fromkeys(name for parts in columns.values() for name in parts):
        table.add_row(name, *(str(parts.get(name, "-")) for parts in columns.values()))
    table.add_section()
    sums = [hourly_cost.total_per_hour(parts.values()) for parts in columns.values()]
    table.add_row("sum", *(f"{dollars:.3f}" for dollars in sums))
    table.add_row("sum for a month", *(f"{dollars * hourly_cost.HOURS_PER_MONTH:.0f}" for dollars in sums))
    out.print(table)
    prices = hourly_cost.read_prices()
    for unit, key in (("GB", "gb"), ("GB and month", "gb_month")):
        out.print(f"$ per {unit}: " + ", ".join(f"{name} {price:g}" for name, price in prices[key].items()))
    if gigabytes <= 0:
        out.print(
            "The sum excludes the data on the file system. To include it: --gb SIZE (make: GB=SIZE, 10⁹ bytes)."
        )
    if any(" to " in f"{dollars:.3f}" for dollars in sums):
        usual, gpus = (f"{low:.0%} to {high:.0%}" for low, high in (prices["spot"], prices["spot_gpu"]))
        out.print(
            f"Spot prices vary: the range is {usual} of the on-demand price ({gpus} with GPUs), an estimate."
        )
    out.print(
        f"List prices of {prices['region']} as of {prices['date']} (aws/prices.yaml); other regions differ."
    )


@app.command("push")
def push_image(
    stack: StackName,
    base: Base = BASE,
    custom: Annotated[
        Path | None, typer.Option("--from", help="Folder with a Dockerfile based on the launcher image.")
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            help="fleet: PaddlePaddle 2.6.2; collective: a current one. Default: `runtime` of the stack's values."
        ),
    ] = "",
) -> None:
    """Build the image, push it to the stack's registry and write its digest to the stack's settings."""
    target = read_stack(stack)
    url = target.outputs().get("registry")
    if url is None:
        raise CommandError(f"stack {stack} has no registry yet. Fix: pulumi up --stack {stack}")
    arch = "arm64" if target.settings.nodes.is_arm else "amd64"
    wanted = (
        runtime
        or chart_values.with_defaults(chart_values.user_values(target.settings, FOLDER), FOLDER)["runtime"]
    )
    build = image_push.ImageBuild(arch, base, wanted, custom)
    image = image_push.push_image(url, FOLDER / "launcher", build, make_clients(target.region)("ecr"))
    target.pulumi("config", "set", "paddle-training:image", image)
    out.print(f"stack {stack} now uses image {image}\nnext: pulumi up --stack {stack}")


@app.command("state")
def make_state(stack: StackName) -> None:
    """Create a bucket for Pulumi's state and a key for its secrets; print the commands that use them."""
    target = read_stack(stack)
    made = state_backend.create_state_backend(make_clients(target.region), target.region)
    out.print(f"# bucket {made.bucket} and key {iam_policies.STATE_ALIAS} are ready; next:")
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
    repository: Annotated[
        str, typer.Option(help="GitHub repository whose pull requests may assume the preview's role.")
    ] = "ORG/REPO",
) -> None:
    """Write the IAM policy documents of the deployer, or of the role that previews pull requests.

    For previews, also print the trust policy of the role.
    """
    target = read_stack(stack)
    place = make_clients(target.region)("iam").meta.partition
    if who == "deployer":
        own = target.settings
        documents = iam_policies.deployer(
            target.prefix, own.iam, partition=place, dns=own.dns, key_arn=own.kms.key_arn
        )
    else:
        documents = iam_policies.preview(place)
        trust = iam_policies.policy("trust of previews", partition=place, repository=repository)
        trust = json.dumps(json.loads(trust), indent=2)
        out.print(
            f"# trust policy of the role, for GitHub's tokens of pull requests of {repository}; once for an account: "
            f"aws iam create-open-id-connect-provider --url https://{iam_policies.GITHUB} "
            f"--client-id-list sts.amazonaws.com\n{trust}"
        )
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
    """Test a complete cycle in a real AWS account: up, training, results, destroy, search for what is left."""
    target = read_stack(stack)
    client = make_clients(target.region)
    price = hourly_cost.total_per_hour(hourly_cost.cost_items(target.settings))
    if not yes:
        raise CommandError(
            f"this creates real resources at about ${price:.2f} an hour. To confirm, add --yes (make: YES=1)"
        )
    if target.settings.compute == "off":
        raise CommandError(f"compute is off, so no training can run. Fix: {target.setting('compute', 'on')}")
    if target.settings.storage.protect and not keep:
        fix = target.setting("storage.protect", "false")
        raise CommandError(
            "storage.protect is true, so the destroy at the end of the smoke test would leave the file "
            f"system and the bucket, which cost money; nothing was created. Fix: {fix}"
        )
    bad = [finding for finding in doctor.run_checks(target, client) if finding.level == "bad"]
    if bad:
        raise CommandError("\n".join(f"{finding.what}\n  → {finding.fix}" for finding in bad))
    left = smoke_test.run_smoke_test(
        target, client, base=base, results=results.resolve(), show_step=out.rule, keep=keep
    )
    if left:
        raise CommandError(
            "these resources still exist after destroy and may cost money:\n"
            + "\n".join(left)
            + "\nFix: delete each of them in the AWS console or with the `aws` command."
        )
    out.print(f"the smoke test passed; the results of its training are in {results}")


@app.command("destroy")
def remove(stack: StackName, yes: Yes = False) -> None:
    """List what will be removed and kept, ask for confirmation, and destroy the stack."""
    target = read_stack(stack)
    exported = json.loads(target.pulumi("stack", "export", capture=True))
    planned = destroy_plan.plan_destroy(exported, stack, target.settings.storage.protect)
    note = target.outputs().get("destroyLoses", "")
    out.print(f"{planned.removed_count} resources of stack {stack} will be removed. {note}")
    for line in [f"  removed: {name}" for name in planned.removed_data] + [
        f"  kept: {name}" for name in planned.kept_data
    ]:
        out.print(line)
    if not yes and typer.prompt(f"type {stack} to continue", default="", show_default=False) != stack:
        raise CommandError(
            f"not confirmed: the answer was not {stack}; nothing was removed. Fix: try again and type {stack}, or "
            "add --yes (make: YES=1)"
        )
    target.pulumi(*destroy_plan.ARGUMENTS)
    if planned.kept_data:
        out.print(
            f"make kept STACK={stack} prints the settings with which the next pulumi up uses these again"
        )


@app.command("kept")
def show_kept(stack: StackName) -> None:
    """List the resources with this stack's tags or name prefix. After a destroy, these are the kept resources."""
    target = read_stack(stack)
    left = smoke_test.find_leftovers(target, make_clients(target.region))
    out.print("\n".join(left) if left else f"no resource has the tags or names of stack {stack}")
    commands = list(destroy_plan.adopt_commands(target, left))
    if commands:
        out.print("# to use these again after a destroy, run before the next pulumi up:")
        out.print("\n".join(commands))


@app.command("render")
def render_chart(stack: StackName) -> None:
    """Print the training chart, rendered with the stack's values. Image and outputs are placeholders."""
    settings = load_settings(read_stack_config(FOLDER, stack))
    values = chart_values.user_values(settings, FOLDER)
    try:
        done = chart_values.run_helm_template(settings, values, FOLDER)
    except FileNotFoundError:
        fix = "install helm 3 or 4, or run `make tools` and add its tools to PATH: python3 local/bootstrap.py path"
        raise CommandError(f"helm, which renders the chart, is not on PATH. Fix: {fix}") from None
    if done.returncode != 0:
        raise CommandError(f"helm cannot render the chart. Fix: correct the cause:\n{done.stderr.strip()}")
    sys.stdout.write(done.stdout)


def main() -> int:
    """Run a command, and print an error as one message on stderr.

    Return the exit code after an error: 64 for invalid settings, else 1. In all other cases typer raises SystemExit
    with the exit code: 0 after success, 1 for `typer.Exit(1)`, 2 for wrong options.
    """
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
