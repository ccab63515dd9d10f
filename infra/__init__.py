"""The Pulumi program.

`stack_builder.py` is the entry point. It reads the inputs (`stack_inputs.py`) and calls one of two targets
(`target_aws.py`, `target_kubeconfig.py`), which create components: one `ComponentResource` per module.

Modules that import no pulumi, so that tests and other tools use them without an engine: `settings*`,
`setting_types`, `stack_config`, `chart_values`, `chart_check`, `cluster_access`, `cluster_preflight`, `release_drift`,
`naming`, `cidr`, `constants`, `instance_types`, `eks_kubeconfig`, `iam_policies`,
`deployer_permissions`.
"""
