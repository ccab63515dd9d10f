"""The pserver (parameter server) and trainer processes of PaddlePaddle: `python -m launcher.trainer`.

- `__main__`, `fork_server`, `process_settings`: start a process, and read its settings.
- `program_loader`: loads the user's training program.
- `conversion`, `record_files`: convert the rows of a shard to fixed-size records. `pass_rows`: a trainer's rows in each
  pass.
- `network`: builds the program's network for servers and trainers. `paddle_internals`: all private parts of Paddle.
- `fleet_trainer`: a pserver, and a trainer with its threads. `server_tables`: how servers divide tables and parameters.
- `server_memory`: reads and writes the rows in a pserver's memory. `row_files`: the binary files of rows.
  `server_commands`: a trainer's commands to the pservers of its pod, to save and load tables.
- `training_loop`: trains the passes, with `training_log` (logs, sums of a pass), `save_schedule` and `evaluation`.
- `server_checkpoints`: saves and restores verified checkpoints. `initial_model`: starts from an earlier model.
  `export`: writes the model.
- `single_process`, `trial_data`: train and check without servers, for `launcher try` and `launcher run`.
"""
