"""The launcher: what runs in the pods of a PaddlePaddle training, and a person's command line for it."""
