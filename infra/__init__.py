"""The Pulumi program's parts: settings, pure builders, and one component a file.

Modules that import no pulumi (so that tests and other tools use them without an engine): `problems`,
`reading`, `settings`, `checks`, `capacity`, `naming`, `versions`, `cidr`, `policies`, `chart_values`,
`kubeconfigs`, `chart_check`, `stack_file`, `drift`.
"""
