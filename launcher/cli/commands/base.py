"""`base`: print the chart values that describe the cluster."""

from __future__ import annotations

from launcher.cli.job_sessions import Session
from launcher.cli.shared_options import require_cluster, with_session
from launcher.cli.terminal import print_blocks


@with_session
def base(session: Session) -> None:
    """Print the values that describe the cluster, not one training: image, storage, scheduling, network.

    Redirect them to base.yaml: `helm upgrade --reset-values -f base.yaml -f TRAINING.yaml` then applies one
    training, without values of the previous one.
    """
    values = require_cluster(session, "base").read_base_values()
    print_blocks([f"{values.rstrip()}\n".encode()])
