"""Commands for the owner of an AWS stack: doctor, cost, push, state, iam-policy, smoke, destroy, kept, render.

The Pulumi program imports nothing from here, and nothing here imports pulumi.
"""
