"""Run one saved network with Paddle's inference."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import light_import
from .errors import ModelError


class Predictor:
    """The network in `<path>.pdmodel` and `<path>.pdiparams`; several threads may call `run`.

    Each thread gets its own copy of Paddle's predictor; the copies share the weights.
    """

    def __init__(self, path: Path, threads: int) -> None:
        """Load the network. Raise `ModelError` if Paddle is not installed or cannot read the files."""
        try:
            paddle = light_import.import_inference()
        except ImportError as error:
            raise ModelError(
                f"Paddle cannot be imported ({error}). Fix: run pip install ./served in a clone of paddle-training"
            ) from error
        program, values = path.with_suffix(".pdmodel"), path.with_suffix(".pdiparams")
        config = paddle.AnalysisConfig(str(program), str(values))
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(threads)
        config.enable_memory_optim()
        try:
            self._first = paddle.create_predictor(config)
        except (RuntimeError, ValueError, OSError) as error:
            last = str(error).strip().splitlines()[-1]
            raise ModelError(
                f"Paddle cannot read {program}: {last}. Fix: copy the model again; the copy may be incomplete"
            ) from error
        self._inputs: list[str] = self._first.get_input_names()
        self._outputs: list[str] = self._first.get_output_names()
        self._own = threading.local()
        self._cloning = threading.Lock()

    def run(self, feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the network's outputs for the inputs in `feed`, whose other arrays are ignored."""
        predictor = getattr(self._own, "predictor", None)
        if predictor is None:
            with self._cloning:
                predictor = self._own.predictor = self._first.clone()
        for name in self._inputs:
            predictor.get_input_handle(name)._copy_from_cpu_bind(np.ascontiguousarray(feed[name]))
        predictor.run()
        return [predictor.get_output_handle(name).copy_to_cpu() for name in self._outputs]
