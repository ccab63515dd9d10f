"""The Pulumi program.

`stack_builder.py` is the entry point. It reads the inputs (`chart_values.py`). For target `kubeconfig`, it creates only
the namespace and the release. For target `aws`, it calls `target_aws.py`, which creates the components. Each module of
components has one `ComponentResource` or a group of related ones.

These modules import no pulumi, so tests and other tools can use them without an engine: `settings`, `chart_values`,
`cluster_access`, `naming`, `aws_facts`, `iam_policies`.
"""
