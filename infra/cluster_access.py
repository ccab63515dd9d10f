"""Rules about who can use the cluster: its administrators, viewers, and the caller who deploys. Imports no pulumi.

EKS rejects an unknown role or user only when the cluster is up, and the release cannot be installed if the caller is
not an administrator. So `pulumi up` and `make doctor` check the roles and users before the cluster is created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from infra.settings import PROJECT, ClusterSettings, Problem, Settings

FindPrincipal = Callable[[str, str], str | None]
"""A function that searches IAM: kind (`role` or `user`) and name → ARN with path; None if nothing has this name."""

NO_PUBLIC_ACCESS = (
    "cluster.publicCidrs is empty, so only machines inside the network of the cluster reach its API server. From "
    "anywhere else, the release cannot be installed. Fix: add your address (cluster.publicCidrs: [YOUR.ADDRESS/32]), "
    "or deploy from a machine in that network or connected with it"
)


def principal_arns(cluster: ClusterSettings, caller: str) -> dict[str, str]:
    """Return key → ARN for each role or user in `cluster.admins` and `cluster.viewers`.

    A key is for example `cluster.admins[0]`. If a setting has only a name, the ARN gets the partition and the account
    of `caller`, the ARN of the caller.
    """
    _, partition, _, _, account, _ = caller.split(":", 5)
    return {
        f"cluster.{key}[{index}]": name
        if name.startswith("arn:")
        else f"arn:{partition}:iam::{account}:{name}"
        for key, names in (("admins", cluster.admins), ("viewers", cluster.viewers))
        for index, name in enumerate(names)
    }


def principal_problems(settings: Settings, caller: str, find: FindPrincipal) -> Iterator[Problem]:
    """Yield a problem for each role or user in the settings that IAM does not have, or has with another path.

    Roles and users of other accounts are not checked. `caller` is the caller's ARN, and `find` searches IAM.
    """
    account = caller.split(":")[4]
    for key, arn in principal_arns(settings.cluster, caller).items():
        if arn.split(":")[4] != account:
            continue
        kind, _, path = arn.rpartition(":")[2].partition("/")
        found = find(kind, path.rpartition("/")[2])
        if found is None:
            limit, why = "a role or user of this account", f"{arn} does not exist in IAM"
            text = f"{limit}: {why}. Fix: use the ARN of an existing role or user"
            yield Problem(f"{PROJECT}:{key}", arn, text)
        elif found != arn:
            limit = "the full ARN of the role or user, with its path"
            why = f"IAM has {found}, not {arn}; EKS accepts only the full ARN"
            text = f"{limit}: {why}. Fix: pulumi config set --path '{key}' {found}"
            yield Problem(f"{PROJECT}:{key}", arn, text)


def caller_problem(settings: Settings, caller: str) -> Problem | None:
    """Return a problem if `cluster.admins` lacks `caller`, the ARN of a role or user with its path; else None."""
    arns = principal_arns(settings.cluster, caller)
    admins = [arn for key, arn in arns.items() if key.startswith("cluster.admins")]
    if caller in admins:
        return None
    why = f"cluster.admins does not list {caller}, so the release could not be installed"
    fix = f"pulumi config set --path 'cluster.admins[{len(admins)}]' {caller}"
    if ":role/" not in caller and ":user/" not in caller:
        why, fix = (
            f"{why}, and EKS accepts only roles and users",
            "sign in as a role that cluster.admins lists",
        )
    return settings.problem("cluster.admins", f"a list with the role or user who deploys: {why}. Fix: {fix}")
