"""The private zone with names for the file system and the API server, and the API's optional public name."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.context import Context
from infra.settings import Dns as DnsSettings

# A mount or a kubeconfig that resolves a name again within a minute finds what has been replaced.
TTL_SECONDS = 60


@dataclass(frozen=True)
class DnsArgs:
    """`api_host` is None while there is no cluster; no address is ever typed by hand."""

    vpc_id: pulumi.Input[str]
    file_system_host: pulumi.Input[str]
    api_host: pulumi.Input[str] | None
    settings: DnsSettings


class Dns(pulumi.ComponentResource):
    """paddle:infra:Dns: records that follow the resources they name."""

    def __init__(self, context: Context, args: DnsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("paddle:infra:Dns", context.named("dns"), None, opts)
        zone_name = args.settings.zone
        zone = aws.route53.Zone(
            context.named("zone"),
            name=zone_name,
            comment=f"{context.prefix}: names inside the network",
            vpcs=[aws.route53.ZoneVpcArgs(vpc_id=args.vpc_id)],
            force_destroy=True,
            tags=context.tagged("zone"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        names = {f"efs.{zone_name}": (zone.zone_id, args.file_system_host)}
        if args.api_host is not None:
            names[f"api.{zone_name}"] = (zone.zone_id, args.api_host)
            if args.settings.external_name != "":
                public = pulumi.Output.from_input(args.settings.public_zone_id)
                names[args.settings.external_name] = (public, args.api_host)
        for name, (zone_id, target) in names.items():
            aws.route53.Record(
                context.named(f"name-{name.replace('.', '-')}"),
                zone_id=zone_id,
                name=name,
                type="CNAME",
                ttl=TTL_SECONDS,
                records=[target],
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({"zoneId": zone.zone_id})
