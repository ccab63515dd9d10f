"""Train or check a program in one process, without parameter servers: `launcher try`, `launcher run`."""
