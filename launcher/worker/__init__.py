"""The processes that train: `python -m launcher.worker`, as a pserver or as a trainer of PaddlePaddle.

settings → program → samples → network → session, trainer (Paddle's parameter server, and what its modes
lack) → loop (passes; schedule: when to save) → keeping (saves and loads that prove themselves: checkpoint is
the folder, parts the servers' files in it, initial another run's parameters) and model. `model` and
`interface` are what people use.
"""
