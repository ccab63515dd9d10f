"""The private DNS zone with names for the file system and the API server, and the API's public name."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.aws_context import AwsComponent, AwsContext

# Clients resolve a name again after a minute, and then find the resource that replaced the old one.
TTL_SECONDS = 60


def private_zone_name(context: AwsContext) -> str:
    """Return the name of the private zone: `dns.zone`, or a default.

    In an existing VPC, the default contains the prefix of the stack, because Route53 rejects a second private zone of
    the same name in a VPC.
    """
    own = f"{context.prefix}.internal" if context.settings.network.vpc_id != "" else "paddle.internal"
    return context.settings.dns.zone if context.settings.dns.zone != "" else own


class Dns(AwsComponent):
    """paddle:infra:Dns: the private DNS zone of the VPC with records `efs` and `api`, and a public name of the API.

    The public name is the setting `dns.externalName`. `api_host` is the host name of the API server. Without a cluster,
    `api_host` is None, and no record of the API is created.
    """

    def __init__(
        self,
        context: AwsContext,
        vpc_id: pulumi.Input[str],
        file_system_host: pulumi.Input[str],
        api_host: pulumi.Input[str] | None,
    ) -> None:
        super().__init__("paddle:infra:Dns", context, "dns")
        zone_name, settings = private_zone_name(context), context.settings.dns
        # Without force_destroy: all records are the program's own, and others must not be lost unnoticed.
        zone = aws.route53.Zone(
            context.named("zone"),
            name=zone_name,
            comment=f"{context.prefix}: names inside the network",
            vpcs=[{"vpc_id": vpc_id}],
            opts=self.child,
        )
        names = {f"efs.{zone_name}": (zone.zone_id, file_system_host)}
        if api_host is not None:
            names[f"api.{zone_name}"] = (zone.zone_id, api_host)
            if settings.external_name != "":
                public = pulumi.Output.from_input(settings.public_zone_id)
                names[settings.external_name] = (public, api_host)
        for name, (zone_id, target) in names.items():
            aws.route53.Record(
                context.named(f"name-{name.replace('.', '-')}"),
                zone_id=zone_id,
                name=name,
                type="CNAME",
                ttl=TTL_SECONDS,
                records=[target],
                opts=self.child,
            )
        self.register_outputs({"zoneId": zone.zone_id})
