"""A trained model that needs no server: numpy and Paddle's inference, and nothing of the launcher.

    from paddle_served import Model

    model = Model("results/model")
    model.predict([{"text": "what a lovely day"}])        # float32, shape [rows, …]

The folder is a run's `output/model` (docs/contracts.md, "A model that serves itself"). It carries its
program's own files, so that rows are parsed as they were in training. Installed by `pip install ./served`
as `paddle_served`, with the HTTP server (`python -m paddle_served --model DIR`) by `'./served[serve]'`; in
the launcher and its image it is `launcher.served`.
"""

from .errors import ModelError, RowError, ServedError
from .model import Answer, Model

__all__ = ["Answer", "Model", "ModelError", "RowError", "ServedError"]
