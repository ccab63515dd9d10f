"""The EKS control plane: its access entries, its add-ons, Helm releases in it, and the state of a running cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from infra import aws_facts, iam_policies, naming
from infra.aws_context import AwsComponent, AwsContext, read_if_exists

# Of the charts for the cluster itself: autoscaler and device plugin.
ADDON_NAMESPACE = "kube-system"
# Context of the kubeconfig.
CONTEXT = "paddle-training"
LOG_TYPES = ("api", "audit", "authenticator")
ADMIN_POLICY = "AmazonEKSClusterAdminPolicy"
# Cannot read Secrets: a preview compares a release with the state; only a refresh reads the release itself.
VIEW_POLICY = "AmazonEKSViewPolicy"


@dataclass(frozen=True)
class LiveGroup:
    """A running node group: its numbers of nodes (minimum, desired, maximum) and its minor Kubernetes version."""

    min: int
    desired: int
    max: int
    version: str


@dataclass(frozen=True)
class LiveCluster:
    """The running cluster: properties that AWS changes without the program.

    The stack's state may have older values, because the autoscaler changes the number of nodes, and AWS upgrades a
    control plane at the end of its version's standard support.

    Attributes:
        version: minor version of the control plane; an empty text if there is no cluster.
        groups: node groups by short name, such as `nodes`.
    """

    version: str = ""
    groups: Mapping[str, LiveGroup] = field(default_factory=dict)


def read_live_cluster(prefix: str) -> LiveCluster:
    """Read the cluster named `prefix` and its node groups from AWS. Without this cluster, return an empty LiveCluster.

    The names of the node groups in AWS are `<prefix>-<short name>-<suffix>`.
    """
    cluster = read_if_exists(lambda name: aws.eks.get_cluster(name=name), prefix)
    if cluster is None:
        return LiveCluster()
    groups: dict[str, LiveGroup] = {}
    for name in aws.eks.get_node_groups(cluster_name=prefix).names:
        part = name.removeprefix(f"{prefix}-").rpartition("-")[0]
        found = aws.eks.get_node_group(cluster_name=prefix, node_group_name=name)
        sizes = found.scaling_configs[0]
        group = LiveGroup(sizes.min_size, sizes.desired_size, sizes.max_size, found.version)
        # While a group is replaced there are two: the larger one has the pods.
        if part not in groups or groups[part].desired < group.desired:
            groups[part] = group
    return LiveCluster(cluster.version, groups)


def newer_version(first: str, second: str) -> str:
    """Return the newer of two minor versions of Kubernetes (`1.35`); an empty text counts as the oldest."""
    return max(first, second, key=lambda version: [int(number) for number in version.split(".") if number])


def endpoint_host(endpoint: str) -> str:
    """Return the host name of an API server's address: `https://NAME` → `NAME`."""
    return endpoint.removeprefix("https://").rstrip("/")


def build_kubeconfig(
    endpoint: str, authority: str, cluster: str, region: str, *, external_name: str = ""
) -> str:
    """Return a kubeconfig as JSON (which is valid YAML). The kubeconfig is the same for every clone and user.

    The kubeconfig contains no secret and no profile: for each use, `aws eks get-token` requests a token with the
    credentials of the user's environment.

    Args:
        endpoint: the API server's address, https://….
        authority: the API server's certificate authority, in base64 as EKS returns it.
        external_name: another DNS name for the API server; empty: none. The server's certificate does not contain this
            name, so clients verify the name of the endpoint instead.
    """
    server: dict[str, str] = {"server": endpoint, "certificate-authority-data": authority}
    if external_name != "":
        server = {**server, "server": f"https://{external_name}", "tls-server-name": endpoint_host(endpoint)}
    login = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": ["eks", "get-token", "--cluster-name", cluster, "--region", region, "--output", "json"],
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": server}],
        "users": [{"name": CONTEXT, "user": {"exec": login}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }
    return json.dumps(document, sort_keys=True)


class EksCluster(AwsComponent):
    """paddle:infra:Cluster: the EKS cluster.

    Attributes:
        before_nodes: resources that must exist before the nodes.
        entries: access entries. They must exist before anything uses the Kubernetes API.

    Args:
        live: the running cluster.
        after: resources that must exist before the cluster.
    """

    def __init__(
        self,
        context: AwsContext,
        subnet_ids: Sequence[pulumi.Input[str]],
        key_arn: pulumi.Input[str],
        live: LiveCluster,
        after: Sequence[pulumi.Resource],
    ) -> None:
        super().__init__("paddle:infra:Cluster", context, "cluster")
        settings, service_cidr = context.settings.cluster, context.settings.network.service_cidr
        self.version = newer_version(settings.version, live.version)
        if self.version != settings.version:
            pulumi.log.warn(
                f"cluster.version {settings.version}: the control plane has {live.version}, and EKS allows no "
                f"downgrade. Nodes and add-ons keep their versions. To upgrade them: pulumi config set --path "
                f"cluster.version {live.version}"
            )
        running = {live.version, *(group.version for group in live.groups.values())} - {""}
        # An upgrade of Kubernetes that the owner asked for, also one that failed in the middle, includes the add-ons.
        upgrades = settings.version == self.version and not running <= {self.version}
        self._upgrades_addons = upgrades or settings.upgrade_addons
        role = self.create_role("cluster", "trust of EKS")
        attached = self.attach_aws_policy("cluster", role, "AmazonEKSClusterPolicy")
        use_key = pulumi.Output.from_input(key_arn).apply(lambda key: iam_policies.policy("cluster", key=key))
        key_policy = self.add_inline_policy("cluster-key", role, use_key)
        public = len(settings.public_cidrs) > 0
        self.cluster = aws.eks.Cluster(
            context.named("cluster"),
            name=context.prefix,
            version=self.version,
            role_arn=role.arn,
            # Extended support, the default of AWS, costs six times as much. AWS upgrades the control plane when
            # standard support ends.
            upgrade_policy={"support_type": "STANDARD"},
            access_config={
                "authentication_mode": "API",
                # The deploying role must be in cluster.admins: the session that creates the cluster ends.
                "bootstrap_cluster_creator_admin_permissions": False,
            },
            bootstrap_self_managed_addons=False,
            enabled_cluster_log_types=list(LOG_TYPES),
            encryption_config={"provider": {"key_arn": key_arn}, "resources": ["secrets"]},
            kubernetes_network_config={"service_ipv4_cidr": service_cidr, "ip_family": "ipv4"},
            vpc_config={
                "subnet_ids": list(subnet_ids),
                "endpoint_private_access": True,
                "endpoint_public_access": public,
                "public_access_cidrs": list(settings.public_cidrs) if public else None,
            },
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[attached, key_policy, *after],
                # AWS may have upgraded the control plane since the last `up`: no request for what it already has.
                ignore_changes=["version"] if live.version == self.version else None,
            ),
        )
        self.name = self.cluster.name
        self.kubeconfig = pulumi.Output.all(
            self.cluster.endpoint, self.cluster.certificate_authority, self.name
        ).apply(
            lambda found: build_kubeconfig(
                found[0],
                found[1]["data"] if isinstance(found[1], dict) else found[1].data,
                found[2],
                context.settings.region,
                external_name=context.settings.dns.external_name,
            )
        )
        self.security_group_id: pulumi.Output[str] = self.cluster.vpc_config.apply(
            lambda vpc: vpc.cluster_security_group_id if vpc.cluster_security_group_id is not None else ""
        )
        self.entries = [
            entry
            for policy, names in ((ADMIN_POLICY, settings.admins), (VIEW_POLICY, settings.viewers))
            for name in names
            for entry in self._add_entry(name, policy)
        ]
        self.before_nodes: list[pulumi.Resource] = [
            self.add_addon(aws_facts.ADDON_VPC_CNI, {"enableNetworkPolicy": "true"}, [self.cluster]),
            self.add_addon(aws_facts.ADDON_KUBE_PROXY, None, [self.cluster]),
            self.add_addon(aws_facts.ADDON_POD_IDENTITY, None, [self.cluster]),
        ]
        self.register_outputs({"name": self.name})

    def _add_entry(self, name: str, policy: str) -> list[pulumi.Resource]:
        part = f"access-{name.rpartition(':')[2].replace('/', '-')}"
        entry = aws.eks.AccessEntry(
            self.context.named(part),
            cluster_name=self.cluster.name,
            principal_arn=self.context.principal_arn(name),
            type="STANDARD",
            opts=self.child,
        )
        association = aws.eks.AccessPolicyAssociation(
            self.context.named(part),
            cluster_name=self.cluster.name,
            principal_arn=entry.principal_arn,
            policy_arn=f"arn:{self.context.partition}:eks::aws:cluster-access-policy/{policy}",
            access_scope={"type": "cluster"},
            opts=self.child,
        )
        return [entry, association]

    def add_addon(
        self, name: str, configuration: Mapping[str, object] | None, after: Sequence[pulumi.Resource]
    ) -> aws.eks.Addon:
        """Create an EKS add-on after the resources in `after`.

        A new add-on gets the default version of AWS, and a preview shows this version. A running add-on keeps its
        version, because an upgrade can disturb pods: a new EFS driver cuts off the volumes that pods have mounted. Only
        an upgrade of Kubernetes, or the setting `cluster.upgradeAddons`, upgrades running add-ons.
        """
        newest: pulumi.Output[str] = aws.eks.get_addon_version_output(
            addon_name=name, kubernetes_version=self.version, opts=pulumi.InvokeOptions(parent=self)
        ).version
        return aws.eks.Addon(
            self.context.named(name),
            # An output of the cluster, so that an add-on is upgraded after the control plane.
            cluster_name=self.cluster.name,
            addon_name=name,
            addon_version=newest,
            configuration_values=None if configuration is None else json.dumps(configuration, sort_keys=True),
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="OVERWRITE",
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=list(after),
                ignore_changes=None if self._upgrades_addons else ["addonVersion"],
            ),
        )

    def add_release(
        self,
        parent: pulumi.Resource,
        part: str,
        chart: str,
        values: Mapping[str, Any],
        after: Sequence[pulumi.Resource],
    ) -> k8s.helm.v3.Release:
        """Create a Helm release of `charts/<chart>` and the Kubernetes provider that installs the release.

        The release has the name of the chart. `part` is the Pulumi name of both resources without the stack's prefix.
        Both are created after the resources in `after`.
        """
        name, folder = self.context.named(part), f"./charts/{chart}"
        provider = k8s.Provider(
            name,
            kubeconfig=self.kubeconfig,
            context=CONTEXT,
            cluster_identifier=self.cluster.endpoint,
            opts=pulumi.ResourceOptions(parent=parent, depends_on=list(after)),
        )
        return k8s.helm.v3.Release(
            name,
            name=chart,
            namespace=ADDON_NAMESPACE,
            chart=folder,
            # A local chart with the same version counts as unchanged, so its digest is part of the release's inputs.
            description=f"chart {naming.folder_digest(folder)}",
            values=dict(values),
            opts=pulumi.ResourceOptions(parent=parent, provider=provider, depends_on=list(after)),
        )
