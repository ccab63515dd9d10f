"""The Pulumi program.

`stack_builder.py` is the entry point. It reads the inputs (`stack_inputs.py`) and creates the components of
target kubeconfig, or calls `target_aws.py`: one `ComponentResource` per module.

Modules that import no pulumi, so that tests and other tools use them without an engine: `settings*`,
`setting_types`, `chart_values`, `chart_check`, `cluster_access`, `cluster_preflight`,
`naming`, `constants`, `instance_types`, `iam_policies`.
"""
