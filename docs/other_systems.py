"""What other systems do after a fault, by kind of fault: the second table of docs/explanation/tested.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Others:
    """How the four other systems handle one kind of fault; letters in brackets refer to the page's sources."""

    kind: str
    torchrun: str
    jobset: str
    paddlejob: str
    tutorial: str


PROCESS = Others(
    "a pserver or trainer dies",
    "restarts all workers, up to `--max-restarts` (default 0) times; the script must resume [a]",
    "recreates all its Jobs after the pod failed, up to `maxRestarts` (default 0) times [b]",
    "restarts the container of that pod (OnFailure); Paddle's processes in other pods hang [c, d]",
    "the pod exits with 0, because its script checks no exit code [e]",
)
HANG = Others(
    "a trainer hangs",
    "not detected, except by NCCL's watchdog or the script's own timers [a]",
    "not detected without a custom liveness probe",
    "not detected without a custom liveness probe",
    "waits forever [e]",
)
FROZEN = Others(
    "a launcher hangs",
    "the other workers remove it from the rendezvous when its heartbeats stop [a]",
    "not detected without a custom liveness probe",
    "not detected without a custom liveness probe",
    "waits forever [e]",
)
RANK_0 = Others(
    "the launcher or the pod of rank 0 is lost",
    "the rendezvous is lost if this host ran it (backend c10d); with etcd it survives [a]",
    "like any other pod [b]",
    "like any other pod [c]",
    "there is no coordinator: each pod lists all pods once, at its start [e]",
)
POD = Others(
    "a pod is deleted",
    "a scheduler must replace the worker; all workers rendezvous again when it joins [a]",
    "recreates all its Jobs, or one pod if the Job's own backoff limit allows it [b]",
    "recreates the pod; Paddle's other processes hang [c, d]",
    "the new pod fails because the old pod's output folder exists [e]",
)
SECOND_POD = Others(
    "two pods of one rank run at once",
    "not documented",
    "not documented; a Job's `podReplacementPolicy` limits it [b]",
    "not documented",
    "the new pod fails because the old pod's output folder exists [e]",
)
NO = "not documented"
CAPACITY = Others(
    "no node for a replaced pod",
    "waits up to the rendezvous timeout (`join_timeout`), then fails [a]",
    *[NO] * 3,
)
DONE = Others("a pod is deleted when the run is complete", NO, "a completed Job stays completed [b]", NO, NO)
DRAIN = Others(
    "the pods are asked to stop (suspend, drain)",
    "stops its workers; the script must save [a]",
    "suspend stops the pods; the program must resume [b]",
    "suspend stops the pods; the program must resume [c]",
    "starts from scratch: checkpoints are never read [e]",
)
LOST_WORK = Others(
    "all processes die in the middle of a pass",
    "the script must save [a]",
    "the program must save [b]",
    "the program must save [c]",
    "all work is lost [e]",
)
NODE = Others(
    "the daemons of a node die, its processes do not",
    "the worker continues while its connections last",
    "continues; pods fail when Kubernetes evicts them [b]",
    "continues; pods fail when Kubernetes evicts them [c]",
    "continues",
)
NETWORK_CUT = Others(
    "the network of a node is cut",
    "a late heartbeat ends the attempt, and all workers rendezvous again [a]",
    "not detected until a process exits or its node is evicted [b]",
    "not detected until a process exits or its node is evicted [c]",
    "Paddle waits or hangs [d]",
)
API = Others(
    "the API server restarts",
    "does not use the API server",
    "the JobSet controller waits; pods are not affected [b]",
    "the training-operator waits; pods are not affected [c]",
    "the pod exits when it cannot list the pods [e]",
)
NAMES = Others(
    "CoreDNS is down",
    "resolves the endpoint's name again at each rendezvous [a]",
    "pods need working DNS names [b]",
    "pods need working DNS names [c]",
    "pods use IP addresses, no names [e]",
)
DATA = Others(
    "the preparation of the data is killed",
    "no data step",
    "`dependsOn` a Job, which is retried [b]",
    "no data step",
    "not detected: a user must check the data [e]",
)
SHARD = Others("a prepared data file is damaged", *["no data step"] * 3, "trains on the damaged data [e]")
CHECKPOINT = Others(
    "a checkpoint is damaged",
    "the script must verify it [a]",
    "the program must verify it [b]",
    "the program must verify it [c]",
    "checkpoints are never read [e]",
)
VOLUME = Others(
    "the volume is full or read-only",
    "like a failed worker, until the restarts are used up [a]",
    "like a failed pod, until the restarts are used up [b]",
    "like a failed pod; OnFailure has no limit [c]",
    "the pod exits with 0, because its script checks no exit code [e]",
)
STORAGE = Others(
    "the storage hangs",
    "not detected: the other workers wait in their next collective call [a]",
    "not detected: the pod runs",
    "not detected: the pod runs",
    "waits forever [e]",
)
