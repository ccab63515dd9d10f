"""Train or check a program in one process, without parameter servers: `launcher try`, `launcher run`.

This works on every platform, while the parameter server is only in Paddle's packages for Linux.
"""
