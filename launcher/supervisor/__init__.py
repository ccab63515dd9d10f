"""Supervision of one training run: every pod runs an agent, and rank 0 also runs the coordinator.

Words of this package: a rank is the number of a pod of the training Job, from 0. A member is a rank as the coordinator
knows it. An attempt is one start of the processes of all ranks; a failure is followed by the next attempt. An order is
the coordinator's instruction to all ranks, such as `serve` (start the parameter servers) or `stop`. A phase is what a
rank reports about its processes. The output lease, in the file run.lock, allows one pod at a time to write to output/.
An incarnation is the random identifier of one pod. A new pod with the same rank has another incarnation.

Arguments of many functions: `now` is the current monotonic time in seconds. `pause(seconds)` waits in the agent's main
thread, and raises an error if this launcher must exit. `wake()` ends a running `pause` early; any thread may call
`wake`.
"""
