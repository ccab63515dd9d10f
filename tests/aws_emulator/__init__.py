"""An emulated AWS: a provider plugin that the real Pulumi engine runs in place of pulumi-aws.

`moto` answers where it has the call; every other type is served by one generic model whose rules come from
the
installed SDK. See README.md in this folder for what is emulated, and what is not.
"""
