"""The private zone with names for the file system and the API server, and the API's optional public name."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.context import Context
from infra.settings import Dns as DnsSettings

# A mount or a kubeconfig that resolves a name again within a minute finds what has been replaced.
TTL_SECONDS = 60


class Dns(pulumi.ComponentResource):
    """paddle:infra:Dns: records that follow the resources they name.

    `api_host` is None while there is no cluster; no address is ever typed by hand.
    """

    def __init__(
        self,
        context: Context,
        *,
        vpc_id: pulumi.Input[str],
        file_system_host: pulumi.Input[str],
        api_host: pulumi.Input[str] | None,
        settings: DnsSettings,
    ) -> None:
        super().__init__("paddle:infra:Dns", context.named("dns"))
        zone_name = settings.zone
        zone = aws.route53.Zone(
            context.named("zone"),
            name=zone_name,
            comment=f"{context.prefix}: names inside the network",
            vpcs=[aws.route53.ZoneVpcArgs(vpc_id=vpc_id)],
            force_destroy=True,
            tags=context.tagged("zone"),
            opts=pulumi.ResourceOptions(parent=self),
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
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({"zoneId": zone.zone_id})
