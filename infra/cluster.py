"""The EKS control plane, who may use it, and the add-ons that must be there before and after the nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pulumi
import pulumi_aws as aws

from infra import kept, policies, versions
from infra.context import Context, allow, attach, role
from infra.settings import Cluster as ClusterSettings

LOG_TYPES = ("api", "audit", "authenticator")
ADMIN_POLICY = "AmazonEKSClusterAdminPolicy"
# Sees no Secrets: a preview compares a release with the stack's state; only a refresh reads the release.
VIEW_POLICY = "AmazonEKSViewPolicy"


class Logs(pulumi.ComponentResource):
    """paddle:infra:Logs: the control plane's log group, which outlives the cluster.

    The cluster would make it itself, without an end to what it keeps; and makes it again when it is removed
    while its last lines come in.
    """

    def __init__(self, context: Context, days: int) -> None:
        super().__init__("paddle:infra:Logs", context.named("logs"))
        self.group = aws.cloudwatch.LogGroup(
            context.named("logs"),
            name=f"/aws/eks/{context.prefix}/cluster",
            retention_in_days=days,
            tags=context.tagged("logs"),
            opts=context.keep(self, kept.LOGS),
        )
        self.register_outputs({"name": self.group.name})


class Cluster(pulumi.ComponentResource):
    """paddle:infra:Cluster.

    `before_nodes` are what nodes wait for; `entries` are what using the cluster waits for.
    """

    def __init__(
        self,
        context: Context,
        *,
        subnet_ids: Sequence[pulumi.Input[str]],
        service_cidr: str,
        key_arn: pulumi.Input[str],
        settings: ClusterSettings,
        logs: pulumi.Resource,
    ) -> None:
        super().__init__("paddle:infra:Cluster", context.named("cluster"))
        self._context = context
        self._version = settings.version
        service_role = role(context, "cluster", "eks.amazonaws.com", self)
        attached = attach(context, "cluster", service_role, "AmazonEKSClusterPolicy", self)
        use = pulumi.Output.from_input(key_arn).apply(policies.use_key)
        key_use = allow(context, "cluster-key", service_role, use, self)
        public = len(settings.public_cidrs) > 0
        self.cluster = aws.eks.Cluster(
            context.named("cluster"),
            name=context.prefix,
            version=settings.version,
            role_arn=service_role.arn,
            # Extended support costs six times as much, and is what AWS chooses unasked.
            upgrade_policy={"support_type": "STANDARD"},
            access_config={
                "authentication_mode": "API",
                # Whoever deploys is listed, or is nobody: a session is no principal that could stay.
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
            tags=context.tagged("cluster"),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[attached, key_use, logs]),
        )
        self.name = self.cluster.name
        self.security_group_id: pulumi.Output[str] = self.cluster.vpc_config.apply(
            lambda vpc: vpc.cluster_security_group_id if vpc.cluster_security_group_id is not None else ""
        )
        self.entries = [
            entry
            for policy, names in ((ADMIN_POLICY, settings.admins), (VIEW_POLICY, settings.viewers))
            for name in names
            for entry in self._entry(name, policy)
        ]
        self.before_nodes: list[pulumi.Resource] = [
            self.addon(versions.ADDON_VPC_CNI, {"enableNetworkPolicy": "true"}, [self.cluster]),
            self.addon(versions.ADDON_KUBE_PROXY, None, [self.cluster]),
            self.addon(versions.ADDON_POD_IDENTITY, None, [self.cluster]),
        ]
        self.register_outputs({"name": self.name})

    def _entry(self, name: str, policy: str) -> list[pulumi.Resource]:
        own = pulumi.ResourceOptions(parent=self)
        part = f"access-{name.rpartition(':')[2].replace('/', '-')}"
        arn = self._context.principal(name)
        entry = aws.eks.AccessEntry(
            self._context.named(part),
            cluster_name=self.cluster.name,
            principal_arn=arn,
            type="STANDARD",
            tags=self._context.tagged(part),
            opts=own,
        )
        association = aws.eks.AccessPolicyAssociation(
            self._context.named(part),
            cluster_name=self.cluster.name,
            principal_arn=entry.principal_arn,
            policy_arn=f"arn:{self._context.partition}:eks::aws:cluster-access-policy/{policy}",
            access_scope={"type": "cluster"},
            opts=own,
        )
        return [entry, association]

    def addon(
        self, name: str, configuration: Mapping[str, object] | None, after: Sequence[pulumi.Resource]
    ) -> aws.eks.Addon:
        """One EKS add-on, made after and removed before what it depends on.

        Its version is the one that AWS chooses for the cluster's, asked for so that a preview shows it.
        """
        chosen = aws.eks.get_addon_version_output(
            addon_name=name, kubernetes_version=self._version, opts=pulumi.InvokeOptions(parent=self)
        )
        return aws.eks.Addon(
            self._context.named(name),
            # The cluster's own output, so that a new version comes behind the control plane's.
            cluster_name=self.cluster.name,
            addon_name=name,
            addon_version=chosen.version,
            configuration_values=None if configuration is None else json.dumps(configuration, sort_keys=True),
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="OVERWRITE",
            tags=self._context.tagged(name),
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )

    def identity(
        self, part: str, namespace: str, account: str, policy: pulumi.Input[str], parent: pulumi.Resource
    ) -> aws.eks.PodIdentityAssociation:
        """A role of its own for one service account, by pod identity; it may do what `policy` says."""
        pod_role = role(self._context, part, "pods.eks.amazonaws.com", parent)
        allowed = allow(self._context, part, pod_role, policy, parent)
        return aws.eks.PodIdentityAssociation(
            self._context.named(part),
            cluster_name=self.cluster.name,
            namespace=namespace,
            service_account=account,
            role_arn=pod_role.arn,
            tags=self._context.tagged(part),
            opts=pulumi.ResourceOptions(parent=parent, depends_on=[allowed]),
        )
