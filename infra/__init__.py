"""The Pulumi program.

`stack_builder.py` is the entry point. It reads the inputs (`chart_values.py`) and creates the release of target
kubeconfig, or calls `target_aws.py`, which creates the components: one `ComponentResource` or one group of related
ones per module.

Modules that import no pulumi, so that tests and other tools use them without an engine: `settings`, `chart_values`,
`cluster_access`, `naming`, `aws_facts`, `iam_policies`.
"""
