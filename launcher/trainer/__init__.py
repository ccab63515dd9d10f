"""The pserver (parameter server) and trainer processes of PaddlePaddle: `python -m launcher.trainer`.

- `__main__`, `fork_server`, `process_settings`: start of a process, and its settings.
- `program_loader`: loads the user's training program.
- `conversion`, `record_files`: the shard's rows as fixed-size records.
- `network`: builds the program's network for servers and trainers; `paddle_internals`: all private parts of Paddle.
- `fleet_trainer`: a pserver, and a trainer with its threads; `server_tables`: shards and dense parameters of servers.
- `server_memory`: the rows of tables in a pserver's memory; `row_files`: their binary files; `server_commands`: by them
  a trainer lets the pservers of its pod save and load tables.
- `training_loop`: the passes, with `training_log` (logs, sums of a pass), `save_schedule` and `evaluation`.
- `server_checkpoints`, `initial_model`, `export`: verified checkpoints, a start from an earlier model, the model.
- `single_process`, `trial_data`: training and checks without servers, for `launcher try` and `launcher run`.
"""
