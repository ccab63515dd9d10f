"""Rank 0's coordinator: holds the output lease, plans attempts, writes run.json and status.json.

The docstring of launcher/supervisor/__init__.py explains the words rank, attempt, order and lease.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from launcher.errors import EXIT_STOPPED, RUN_ENDS, GangError, LauncherError, StoppedError, UnfitError
from launcher.log import log
from launcher.paths import OutputPaths, Position
from launcher.reporting.notifications import Notifier, RunEvent
from launcher.reporting.text_formats import utc_time
from launcher.runtimes.runtime_protocol import Runtime
from launcher.schema import RunFile, StatusFile
from launcher.settings import PREVIOUS, TrainSettings
from launcher.supervisor.bucket_export import BucketExport
from launcher.supervisor.coordinator.decisions import (
    decide_next_plan,
    describe_growth,
    plan_first_attempt,
)
from launcher.supervisor.coordinator.members import (
    GangLimits,
    Member,
    Membership,
    StateRejectedError,
    can_run_processes,
    describe_absences,
    describe_missing,
    find_expected,
    find_missing,
)
from launcher.supervisor.coordinator.run_writer import RunFilesWriter, describe_wait
from launcher.supervisor.helper_processes import write_report
from launcher.supervisor.node_check import LEAST_RANKS, describe_bad_nodes
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.coordinator_link import OrderSource, coordinator_name
from launcher.supervisor.peers.messages import Action, Failure, MemberState, Phase, Plan
from launcher.supervisor.peers.peer_server import TrainerStore, build_store_prefix
from launcher.supervisor.run_tracking import RunTracking
from launcher.supervisor.shared_storage.output_folder import (
    check_folders,
    find_newest_save,
    find_previous_model,
    open_output,
)
from launcher.supervisor.shared_storage.output_lease import (
    OutputLease,
    build_credential,
    hash_credential,
    write_secret,
)
from launcher.supervisor.timings import Timings

INTERNAL = (
    "internal error of the launcher: {!r}. Fix: report it as a bug, with the stack trace in the pod's log"
)
FEW_RANKS = (
    f"; with fewer than {LEAST_RANKS} ranks there is no median, so only the network's limits were checked"
)
TRAINED_ALONE = (
    "the processes of this run have never been connected to each other, so each of the {} processes has most likely "
    "trained alone, and its model knows a part of the data only. Fix: call paddle.distributed.init_parallel_env, or "
    "torch.distributed.init_process_group, in every process"
)


class Coordinator(OrderSource):
    """Decides what all ranks do, and sends them orders; only the pod that holds the output lease has a coordinator.

    This pod is rank 0, or any rank in an elastic run. The agent's main thread calls the coordinator's methods, with
    three exceptions. HTTP threads use `membership`, `trainer_store` and `build_status`. The watchdog's thread calls
    `reject_states`. The thread of the output lease orders all ranks to stop when the lease is lost.
    """

    def __init__(
        self,
        settings: TrainSettings,
        runtime: Runtime,
        network: PodNetwork,
        timings: Timings,
        *,
        address: str,
        pause: Callable[[float], None],
        wake: Callable[[], None],
        offers: int = 0,
    ) -> None:
        """Create the coordinator; the agent then calls `acquire_output` and `start_run`.

        Args:
            address: IP address of this pod, which other ranks read in run.lock.
            pause: waits for a number of seconds, as time.sleep does; raises an error if the agent must exit.
            wake: called when a rank has reported a new phase or failure, so that the agent calls `update` at once.
            offers: how often this pod has offered the lease of an elastic run while it waits for ranks, without any pod
                taking it.
        """
        self._settings, self._runtime, self._network, self._timings = settings, runtime, network, timings
        self._pause = pause
        s, t = settings, timings
        self._limits = GangLimits(
            silence=t.silence,
            life=t.life,
            rendezvous=s.rendezvous_seconds,
            join=s.join_seconds,
            serve=t.ready + t.stop + t.stuck,
            finish=t.pserver_exit + 2 * t.stop + t.stuck,
            restarts=s.restarts,
            passes=s.passes,
            wall_offset=time.time() - time.monotonic(),
            find_checkpoint=self._find_checkpoint,
            find_script_save=self._find_script_save,
            find_script_changes=lambda: self.run_files.script_changes if self.run_files is not None else None,
            describe_absence=self._describe_absence,
            own_rank=s.completion_index,
            trainers=s.trainers,
            min_trainers=s.min_trainers if s.is_elastic else sys.maxsize,
            rank_wait=s.rank_wait_seconds,
            grow=s.grow_after_minutes * 60,
            offer=t.offer if s.is_elastic else math.inf,
            offers=offers,
        )
        self.membership = Membership(s.shards, self._limits, wake, t.hold)
        self.output = OutputPaths(s.layout.output)
        self._secret = os.urandom(16).hex()
        self.credential = build_credential(s, self._secret)
        token = hash_credential(self.credential)
        self.lock = OutputLease(self.output.lock, s, t, token=token, address=address, pause=pause)
        self.trainer_store = TrainerStore(self.output.checkpoint_request)
        self.plan = Plan(attempt=-1)
        self.run_files: RunFilesWriter | None = None
        """Writes run.json and status.json; None before `start_run`."""
        self._notifier = Notifier(s)
        self._tracking = RunTracking(s, t, lambda: self.lock.is_lost)
        self._exporter = BucketExport(s, t, pause) if s.export_to else None
        self._is_complete = False
        """Whether the run was complete before this launcher started."""
        self._logged_wait = self._ask_dns_from = 0.0
        """Monotonic times: of the last log line about missing ranks, and from which on DNS may be asked about them
        again."""
        self._bad_nodes = ""
        """The result of the newest node check."""
        self.succeeds = False
        """Whether an earlier coordinator was another rank of this elastic run, whose orders this pod has followed until
        now."""
        self.waits_since: float | None = None
        """Set if this pod coordinates the run again because no pod took the lease that it offered: the monotonic time
        since which it has waited for ranks; otherwise None."""
        self._late_attempt: int | None = None
        """The newest attempt for which users were notified of missing ranks; None: no attempt yet."""

    @property
    def order(self) -> Plan:  # type: ignore[override]
        """Return the order that all ranks receive."""
        return self.membership.order

    def acquire_output(self, on_lease_lost: Callable[[], None]) -> bool:
        """Wait until this pod holds the output lease; then renew it in the background and let ranks join.

        If the lease is lost later, a thread calls `on_lease_lost` and orders all ranks to stop. Return True if this pod
        holds the lease, and False if another pod of this elastic run holds it.

        Raises:
            LauncherError: another run or pod keeps the lease, or the storage cannot be used.
        """
        check_folders(self._settings.layout)
        if not self.lock.acquire(yields=self._settings.is_elastic):
            return False
        keep_secret = functools.partial(write_secret, self._settings.layout.run_secret, self._secret)

        def lose(error: LauncherError) -> None:
            on_lease_lost()
            if self.run_files is not None:
                self.run_files.stop_status()
            self._stop_attempt(error)

        self.lock.start_renewing(lose, keep_secret)
        keep_secret()
        self.membership.open(self.credential)
        return True

    def start_run(self, fingerprint: dict[str, Any]) -> None:
        """Resume or create output/, write the first run.json, and plan the first attempt.

        This also starts the threads that write status.json and send metrics to the trackers. Unless training is
        complete already, this then reserves the run's folder in the bucket of training.exportTo, finds the model if
        training.initModelPath is `previous`, and notifies users that the run has started. Users are not notified if
        this pod coordinates the run again because no other pod took the lease. If training is complete already, no
        attempt is planned.

        Raises:
            LauncherError: output/ or the folder in the bucket cannot be used; or training.initModelPath is `previous`,
                and all earlier complete runs trained another program.
        """
        s = self._settings
        attempt, resumed = open_output(s, fingerprint, self.lock)
        earlier = resumed if resumed.run_id == s.run_id else RunFile()
        self._is_complete = self._runtime.is_complete(self.output.root, s)
        self.run_files = RunFilesWriter(
            self.output,
            s,
            self._timings,
            self.lock,
            fingerprint=fingerprint,
            earlier=resumed,
            limits=self._limits,
            read_plan=lambda: (self.plan, self.membership.members),
        )
        plan, members = plan_first_attempt(
            earlier, attempt, s.shards, time.monotonic(), s.completion_index, succeeds=self.succeeds
        )
        if self.waits_since is not None and plan.do == Action.WAIT:
            plan = replace(plan, since=self.waits_since)
        plan = replace(plan, init_model=resumed.init_model)
        self.membership.restore(members)
        if self._is_complete:  # no attempt follows
            last = max(0, plan.attempt - 1)
            plan = replace(plan, attempt=last, incarnations=earlier.incarnations, world=earlier.world)
        self.run_files.open(plan, is_complete=self._is_complete)
        self.plan = plan
        self.run_files.start_status()
        self._tracking.start()
        self.membership.publish(plan)
        if self._is_complete:
            self._log_nothing_to_start()
            return
        exported = self._exporter.reserve(self.run_files.output_id) if self._exporter is not None else None
        if s.init_model == PREVIOUS and plan.init_model is None:
            model = find_previous_model(s, fingerprint["program"], exported, self._pause)
            self.plan = replace(plan, init_model=model)
            self.run_files.write_plan(self.plan)
        if self.waits_since is None:
            self._notify("started", None)

    def _log_nothing_to_start(self) -> None:
        s, at = self._settings, self._find_checkpoint()
        passes = "the only pass is" if s.passes == 1 else f"all {s.passes} passes are"
        done, more = f"{passes} done already", "more training.passes"
        if at is not None and at.passes < s.passes and s.patience:
            done = f"training ended early after pass {at.passes} (training.patience is {s.patience})"
            more = "a higher training.patience, or 0"
        log.info(
            "%s: nothing to start. A new runId resumes this output, but trains only with %s. To start from scratch, "
            "set `startFromScratch` to any new text; this output is then moved to runs/",
            done,
            more,
        )

    def check_lease(self) -> None:
        """Raise `LeaseLostError` if this pod lost the output lease."""
        self.lock.check()

    def reject_states(self) -> None:
        """Reject the states of all ranks until the next `update`."""
        self.membership.close()

    def build_status(self) -> StatusFile | None:
        """Return the content of status.json; None before this pod has opened the output."""
        return None if self.run_files is None else self.run_files.build_status()

    def update(self, read_state: Callable[[], MemberState], now: float) -> None:
        """Record the state of the coordinator's own rank, and decide on the next plan, the order for all ranks.

        Most changes of the plan are logged. If a field of `PlanRecord` has changed or the run ends, run.json is written
        before any rank receives the new plan. At the end of the run this method also writes the report and exports the
        model, which may take long. Before `start_run`, and if the lease is lost, the plan does not change.

        Raises:
            LauncherError: run.json cannot be written, this pod cannot access the storage, another pod of this rank is
                alive, or this launcher must exit.
        """
        try:
            self.membership.record_state(read_state(), now)
        except StateRejectedError as error:  # another pod of this rank has reported its state first
            raise UnfitError(
                f"this pod coordinated the run, but {error}. This pod exits, and another rank coordinates the run. "
                "Fix: none is needed if one of the two pods is being deleted"
            ) from None
        if self.run_files is None or self.lock.is_lost:
            return
        self.membership.open(self.credential)  # the agent's watchdog closes it while this thread is stuck
        before = self.plan
        if self._is_complete:
            plan = replace(before, do=Action.END, cause=None)
        else:
            members = self.membership.members
            plan = decide_next_plan(before, members, now, self._limits)
        if plan == before:
            self._report_wait(now)
            return
        # The trainers wait after the checkpoint for the order to stop, so that they train nothing that is lost.
        self.trainer_store.hold(plan.save_after is not None or plan.grow_since is not None)
        self._announce_change(before, plan, now)
        if plan.do == Action.END:
            plan = self._end_run(plan, self.run_files)
        elif before.record != plan.record:
            self.run_files.write_plan(plan)
        self.plan = plan
        self.membership.publish(plan)

    def _find_checkpoint(self) -> Position | None:
        return self._runtime.newest_checkpoint(self.output.root)

    def _find_script_save(self) -> float:
        return find_newest_save(self.output.script_checkpoints)[0] if self._runtime.is_user_script else 0.0

    def _announce_change(self, before: Plan, plan: Plan, now: float) -> None:
        """Log the change from the plan `before` to `plan`.

        For a new attempt, also open the trainers' key-value store. Notify users of restarts and of other changes that
        they should know about. If `plan` requests a checkpoint, let the store request it from the trainers.
        """
        if plan.do == Action.SERVE:
            self.trainer_store.open(build_store_prefix(self.credential, plan.attempt))
            self.rendezvous_seconds = now - before.since
            model = self._settings.init_model if plan.init_model is None else plan.init_model
            start = f"starts with the parameters of {model}" if model else "starts from scratch"
            if saved := self._find_script_save():
                start = (
                    f"starts the script again, whose newest file in {self.output.script_checkpoints} is of "
                    f"{utc_time(saved)}: it resumes if it reads that"
                )
            how = start if plan.resume is None else f"resumes from {plan.resume}"
            log.info("attempt %d %s; the rendezvous took %.1f s", plan.attempt, how, self.rendezvous_seconds)
            size, others = len(plan.ranks), len(before.ranks) or self._settings.trainers
            if size != others:
                ranks = ", ".join(map(str, sorted(plan.ranks)))
                self._notify("resized", f"the run goes on with {size} ranks instead of {others}: {ranks}")
            if self._late_attempt == plan.attempt:
                self._notify("joined", None)
        elif plan.do == Action.TRAIN and before.do == Action.SERVE and self._settings.node_check:
            self._report_bad_nodes()
        elif plan.save_after is not None and before.save_after is None:
            self.trainer_store.request_checkpoint()
            wait = describe_wait(plan, self._find_expected(plan), now, self._limits.silence)
            log.info("%s", wait or "checkpoint requested, to take in the ranks that have joined")
        elif plan.grow_since is not None and before.grow_since is None:
            log.info("training until %s", describe_growth(plan, self.membership.members, now, self._limits))
        elif plan.do == Action.STOP and before.do != Action.STOP and plan.cause is not None:
            what = "stopped" if plan.cause.code == EXIT_STOPPED else "failed"
            log.error("attempt %d %s: %s", plan.attempt, what, plan.cause.text)
        elif plan.do == Action.WAIT and plan.cause is not None:
            counted = (
                f"{plan.counted_restarts} of {self._settings.restarts} restarts since the newest checkpoint"
            )
            log.info("restarting as attempt %d (%s)", plan.attempt, counted)
            self._notify("restarted", plan.cause.text)

    def _report_bad_nodes(self) -> None:
        """Log the result of the node check; notify users if it shows other bad nodes than the check before."""
        before, self._bad_nodes = self._bad_nodes, describe_bad_nodes(self._find_expected(self.plan))
        few = FEW_RANKS if len(self.plan.ranks) < LEAST_RANKS else ""
        log.info("%s", self._bad_nodes or f"node check: no bad node{few}")
        if self._bad_nodes not in ("", before):
            self._notify("warned", self._bad_nodes)

    def _end_run(self, plan: Plan, run_files: RunFilesWriter) -> Plan:
        """Write the report, export the model, and write the outcome to run.json before any rank or user receives it.

        Report and export are made only for a complete run, whose plan has no cause. A failure of the report is only
        logged. If there is another error before the end of the export, return `plan` with this error as its cause.
        Otherwise return `plan` itself.

        Raises:
            StoppedError: this launcher must exit because of a signal.
            LeaseLostError, StorageError, StorageFailedError, OSError: the outcome cannot be written to run.json.
        """
        if plan.cause is None:
            try:
                self._complete_run(run_files)
            except (StoppedError, OSError):
                raise
            except LauncherError as error:
                plan = replace(plan, cause=self._to_failure(error))
            except Exception as error:  # another pod of rank 0 would fail too
                log.exception("internal error of the launcher at the end of the run; the stack trace follows")
                failed = GangError(INTERNAL.format(error))
                plan = replace(plan, cause=self._to_failure(failed))
        cause = plan.cause
        self.plan = plan
        run_files.close("complete" if cause is None else "failed", cause)
        if cause is None:
            self._notify("completed", None, run_files.score or None)
        else:
            self._notify("failed", cause.text)
        return plan

    def _complete_run(self, run_files: RunFilesWriter) -> None:
        """Write the state `complete` to run.json, write the report, and export the model if training.exportTo is set.

        Before that, log and record a warning if the processes of a user's script were never connected to each other, so
        that most likely each of them trained alone.

        Raises:
            LauncherError: run.json cannot be written, the export failed, or this launcher must exit. A failure of the
                report is only logged.
        """
        world = len(self.plan.ranks) * self._settings.processes_per_pod
        is_world = self._runtime.is_user_script and world > 1 and not self._is_complete
        if is_world and not any(m.state.connected for m in self.membership.members):
            run_files.warning = TRAINED_ALONE.format(world)
            log.warning("%s", run_files.warning)
        run_files.write_trained()
        # Also if training was complete before this start: the report may be that of an earlier start that failed.
        write_report(self._settings, self._timings, self._timings.curve, self._pause)
        if self._exporter is not None:
            run_files.state = "exporting"
            run_files.exported = self._exporter.copy(run_files.output_id)

    def _report_wait(self, now: float) -> None:
        """Log from time to time what the rendezvous waits for.

        If it takes unusually long (`GangLimits.rendezvous`), notify users once about the missing ranks.
        """
        if self.plan.do != Action.WAIT:
            return
        expected, waited = self._find_expected(self.plan), now - self.plan.since
        missing = find_missing(expected, now, self._limits.silence)
        if missing and waited >= self._limits.rendezvous and self._late_attempt != self.plan.attempt:
            self._late_attempt = self.plan.attempt
            self._notify("waiting", describe_missing(expected, self.plan.since, now, self._limits))
        if now - max(self._logged_wait, self.plan.since) < self._timings.log_again:
            return
        self._logged_wait = now
        wait = describe_wait(self.plan, expected, now, self._limits.silence)
        why = describe_absences([m for m in missing if m.phase == Phase.ABSENT], self._limits)
        log.info("waiting for %s", "; ".join(filter(None, (wait, *why))))

    def _to_failure(self, error: LauncherError) -> Failure:
        return Failure.from_error(error, time.monotonic(), self._settings.completion_index)

    def _find_expected(self, plan: Plan) -> list[Member]:
        return find_expected(plan, self.membership.members, self._limits.trainers)

    def _describe_absence(self, rank: int) -> str:
        """Return a text that says why rank `rank` has not joined yet, as far as DNS shows the cause.

        This asks DNS, which may take seconds. After a slow answer DNS is not asked again for `Timings.log_again`
        seconds.
        """
        name, start = f"{self._settings.k8s_job}-{rank}.{self._settings.service}", time.monotonic()
        if start < self._ask_dns_from:
            return f"rank {rank}: DNS responds too slowly to find out whether {name} resolves"
        found = self._network.resolve(name)
        # The main thread waits for DNS, which may need ten seconds for each name while it is unavailable.
        if (now := time.monotonic()) - start > self._timings.slow_dns:
            self._ask_dns_from = now + self._timings.log_again
        if not found:
            return f"rank {rank}: {name} does not resolve (its pod is not scheduled, or has no address)"
        return (
            f"rank {rank}: {name} resolves to {', '.join(found)}, but its launcher has not called "
            f"{coordinator_name(self._settings)} on peerPort {self._settings.peer_port} (its init container waits, "
            "it cannot start, or a network policy blocks that port)"
        )

    def announce_exit(self, error: LauncherError) -> None:
        """Order all ranks to stop, because rank 0's launcher exits with `error`.

        The order is `end` if the error ends the whole run. Otherwise it is `stop`, and a new pod of rank 0 resumes the
        run later. The processes of rank 0 itself may still run during this call.
        """
        if error.exit_code in RUN_ENDS:
            cause = self._to_failure(error)
            cause = replace(cause, text=f"rank {cause.rank} ({self._settings.pod_name}): {cause.text}")
            self.plan = replace(self.plan, do=Action.END, cause=cause)
            self.membership.publish(self.plan)
        else:
            self._stop_attempt(error)

    def leave_run(self, clock: Callable[[], float]) -> None:
        """Let another pod coordinate this elastic run: write `stopped` to run.json, and release the output lease.

        Call this only while the run waits for ranks. Like `wait_and_close`, which explains `clock`, it first waits for
        a limited time until the ranks know that it leaves. Users are not notified, because most likely nothing changes
        for them.
        """
        expected = self._find_expected(self.plan)
        missing = find_missing(expected, time.monotonic(), self._limits.silence)
        text = (
            f"rank {self._settings.completion_index} ({self._settings.pod_name}) coordinates the run, but "
            f"{len(missing)} of {len(expected)} ranks do not reach it; they may reach each other, so it leaves the run "
            f"to another rank for {self._timings.offer:.0f} s. Fix: none if their pods do not run; else see whether "
            "the nodes reach each other (a network policy, a broken link)"
        )
        log.warning("%s", text)
        error = StoppedError(text)
        self._stop_attempt(error)
        self.wait_and_close(error, clock)

    def _stop_attempt(self, error: LauncherError) -> None:
        now, plan = time.monotonic(), self.plan
        # An attempt that waits has not started, so the next start uses its number again. The logs, which are then
        # archived under the number before, are those of the attempt before.
        attempt = plan.attempt - (plan.do == Action.WAIT and plan.attempt > 0)
        cause = self._to_failure(error)
        self.plan = replace(plan, attempt=attempt, do=Action.STOP, cause=cause, since=now)
        self.membership.publish(self.plan)

    def wait_and_close(
        self, error: LauncherError | None, clock: Callable[[], float], seconds: float = 0.0
    ) -> None:
        """Wait, for a limited time, until all ranks have the last order and have stopped; then release the lease.

        Before the release, write the error to run.json, write the report of a failed run, and send the final state of
        the run to the trackers. If the error does not end the run, run.json gets the state `stopped`, but only if all
        ranks have stopped. After the loss of the lease, run.json and the report are not written.

        Args:
            error: why rank 0 exits; None: run.json already has the outcome of the run.
            clock: returns the monotonic time. It is called about 20 times a second, and so shows the watchdog that this
                thread is not stuck.
            seconds: for how many seconds users' scripts on other ranks may still take to stop.
        """
        # A rank that has not joined yet may be starting: it should receive the cause from this rank 0.
        start = clock()
        late, deadline = start + self._timings.late_rank_wait, start + max(self._timings.farewell, seconds)
        while True:
            now = clock()
            others = [m for m in self.membership.members if m.state.rank != self._settings.completion_index]
            # A rank may have started processes after the last state that arrived here.
            attempt = self.plan.attempt if self.plan.do == Action.STOP else -1
            stopped = not any(can_run_processes(m, now, self._limits.life, attempt) for m in others)
            informed = self.membership.all_have_newest_order(now, skip_absent=now >= late)
            if (informed and (stopped or self.lock.is_lost)) or now >= deadline:
                break
            time.sleep(0.05)

        def pause(seconds: float) -> None:
            clock()  # the watchdog must not take this thread for a stuck one
            time.sleep(seconds)

        if self.run_files is not None:
            if error is not None and not self.lock.is_lost:
                # A successor assumes that no rank of a run with state `stopped` runs a process.
                if error.exit_code in RUN_ENDS:
                    self._record_end("failed", error, self.run_files)
                elif stopped:
                    self._record_end("stopped", error, self.run_files)
            has_failed = self.plan.do == Action.END and self.plan.cause is not None
            if has_failed and not self.lock.is_lost:  # a complete run has written its report before
                write_report(self._settings, self._timings, self._timings.report, pause)
            self.run_files.stop_status()
        self._tracking.finish()  # before another run may move the output
        self.lock.release()
        self._notifier.close(self._timings.copies)

    def _record_end(
        self, state: Literal["failed", "stopped"], error: LauncherError, run_files: RunFilesWriter
    ) -> None:
        """Write to run.json that the run ended in this `state` because of `error`, and notify users.

        An error while run.json is written is only logged. Users are not notified if another rank only takes over the
        run (`leave_run`).
        """
        try:
            run_files.close(state, self._to_failure(error))
        except Exception as failed:  # the lease is released, and the pod exits, whatever happens
            log.warning(
                "cannot write how the run ended to run.json, which still has an earlier state: %r", failed
            )
        if not self.plan.offers_lease:
            self._notify(state, str(error))

    def _notify(self, event: RunEvent, cause: str | None, score: dict[str, Any] | None = None) -> None:
        self._notifier.notify(event, attempt=self.plan.attempt, cause=cause, score=score)
