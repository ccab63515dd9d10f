"""Predict with a trained model. This package needs numpy and Paddle's inference, but not the launcher.

    from paddle_served import Model

    model = Model("results/model")
    model.predict([{"text": "what a lovely day"}])        # float32, shape [rows, …]

The folder is `output/model` of a run (docs/reference/files.md). It contains the training program, so that rows are
parsed as in training.

`pip install ./served` installs this package as `paddle_served`, and `pip install './served[serve]'` adds the HTTP
server (`python -m paddle_served --model DIR`). In the launcher and its image, the package is
`launcher.serving.paddle_served`.
"""

from .model import Model, ModelError, PredictionResult, RowError, ServedError

__all__ = ["Model", "ModelError", "PredictionResult", "RowError", "ServedError"]
