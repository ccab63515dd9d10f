"""A monthly budget for all resources with the stack's tags, with alarms by e-mail."""

from __future__ import annotations

import pulumi_aws as aws

from infra.aws_context import AwsComponent, AwsContext
from infra.settings import BudgetSettings


class Budget(AwsComponent):
    """paddle:infra:Budget: an AWS budget with e-mail alarms at 80 % and 100 % of `budget.dollars` a month.

    The costs that it counts stay at 0 dollars until the account activates KubernetesCluster as a cost allocation tag.
    """

    def __init__(self, context: AwsContext, settings: BudgetSettings) -> None:
        super().__init__("paddle:infra:Budget", context, "budget")
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
                    "threshold_type": "PERCENTAGE",
                    "comparison_operator": "GREATER_THAN",
                    "notification_type": "ACTUAL",
                    "threshold": percent,
                    "subscriber_email_addresses": [settings.email],
                }
                for percent in (80, 100)
            ],
            opts=self.child,
        )
        self.register_outputs({})
