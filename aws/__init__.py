"""Commands for the owner of an AWS stack: doctor, cost, plan, push, state, destroy, smoke, preview comment.

The Pulumi program imports nothing from here, and nothing here imports pulumi.
"""
