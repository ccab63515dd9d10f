"""An emulated AWS: a provider plugin that the real Pulumi engine runs instead of pulumi-aws.

moto answers the calls that it supports. Every other resource type is handled by one generic model whose rules
come from the installed SDK. README.md in this folder lists what is emulated and what is not.
"""
