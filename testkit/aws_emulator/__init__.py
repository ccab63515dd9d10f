"""An emulated AWS: a provider plugin that the real Pulumi engine uses instead of pulumi-aws.

moto answers the calls that it supports. Every other resource type is handled by one generic model whose rules
come from the installed SDK and from resource_types.yaml. README.md in this folder lists what is emulated and what is
not.
"""
