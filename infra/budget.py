"""A monthly budget for all that carries the stack's tag, with an alarm by mail."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.context import Context
from infra.settings import Budget as BudgetSettings


class Budget(pulumi.ComponentResource):
    """paddle:infra:Budget. It counts once the account allocates costs by the tag KubernetesCluster."""

    def __init__(self, context: Context, settings: BudgetSettings) -> None:
        super().__init__("paddle:infra:Budget", context.named("budget"))
        told = {"threshold_type": "PERCENTAGE", "comparison_operator": "GREATER_THAN"}
        aws.budgets.Budget(
            context.named("budget"),
            name=context.named("budget"),
            budget_type="COST",
            time_unit="MONTHLY",
            limit_amount=str(settings.dollars),
            limit_unit="USD",
            cost_filters=[{"name": "TagKeyValue", "values": [f"user:KubernetesCluster${context.prefix}"]}],
            notifications=[
                {
                    **told,
                    "notification_type": "ACTUAL",
                    "threshold": percent,
                    "subscriber_email_addresses": [settings.email],
                }
                for percent in (80, 100)
            ],
            tags=context.tagged("budget"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})
