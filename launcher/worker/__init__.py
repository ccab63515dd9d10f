"""The processes that train: `python -m launcher.worker`, as a pserver or as a trainer of PaddlePaddle.

settings → program → samples → network → session (Paddle's parameter server, and what its modes lack) →
loop (passes) → checkpoint, model. `model` and `interface` are what people use.
"""
