"""The pserver (parameter server) and trainer processes of PaddlePaddle: `python -m launcher.trainer`.

- `__main__`, `fork_server`, `process_settings`: start of a process, and its settings.
- `program_loader`: loads the user's training program.
- `records/`: the shard's rows as fixed-size records.
- `graph/`: builds the program's network for servers and trainers.
- `pserver_client`: communication with Paddle's servers, threads, and the steps that Paddle's training modes
  (sync, async) leave out.
- `training_loop`: the passes, with `training_log` (logs, progress.json, metrics.csv) and `evaluation`.
- `checkpoint/`, `export/`: verified checkpoints, and the exported model.
- `single_process/`: training and checks without servers, for `launcher try` and `launcher run`.
"""
