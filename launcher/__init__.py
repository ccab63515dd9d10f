"""The launcher: runs in the pods of a PaddlePaddle training, and is the command line for its users."""
