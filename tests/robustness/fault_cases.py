"""What ends or disturbs a training, and what its user sees, as data: `test_faults.py` provokes every fault, `docs/faults.md` is
generated from here.

The run folder is `runs/tiny`, of six updates with a checkpoint every second one.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cases import Case

TRAIN = "reluformer train --config tiny.yaml"
TORCHRUN = "torchrun --nproc_per_node 2 -m reluformer train --config tiny.yaml"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        given: what happens, in words.
        provoke: name of the function in `provoked_faults.py` that makes it happen.
        command: that meets it.
        outcome: `exit` and the status of the command.
        says: what is printed then; `…` stands for what differs between machines and versions; empty for nothing.
        kept: the whole checkpoints that are there afterwards, or what else there is.
        again: what the same command does next: a line that it prints; empty where there is none to be given. After a fault of
            several processes, it is one process with twice the accumulation that goes on.
        same_end: whether it then ends with the weights of a run that nothing has disturbed, bit by bit.
        test: the test that shows more of it.
        several_processes: it takes a launcher.
    """

    given: str
    provoke: str
    command: str
    outcome: str
    says: str
    kept: str
    again: str = ""
    same_end: bool = False
    test: str = "tests/training/run/test_interruptions.py"
    several_processes: bool = False

    def is_said_in(self, text: str) -> bool:
        return Case(self.given, self.command, self.outcome, self.says).matches(text)

    def is_said_again_in(self, text: str) -> bool:
        return Case(self.given, self.command, self.outcome, self.again).matches(text)


SIGNALS = [
    Fault(
        "SIGKILL, at any moment",
        "killed_between_checkpoints",
        TRAIN,
        "exit 137",
        "",
        "checkpoint-2, checkpoint-4",
        "going on at runs/tiny/checkpoint-4",
        same_end=True,
    ),
    Fault(
        "SIGKILL while a checkpoint is being written",
        "killed_while_writing",
        TRAIN,
        "exit 137",
        "",
        "all earlier ones",
        "runs/tiny/checkpoint-…: not used: it was being written when the run ended",
        same_end=True,
    ),
    Fault(
        "SIGTERM",
        "terminated",
        TRAIN,
        "exit 143",
        "reluformer: stopped by SIGTERM after update 3; the same command goes on at runs/tiny/checkpoint-3",
        "checkpoint-2, checkpoint-3",
        "going on at runs/tiny/checkpoint-3",
        same_end=True,
    ),
    Fault(
        "Ctrl-C",
        "interrupted",
        TRAIN,
        "exit 130",
        "reluformer: interrupted: the same command goes on at runs/tiny/checkpoint-2",
        "checkpoint-2",
        "going on at runs/tiny/checkpoint-2",
        same_end=True,
    ),
]
DISKS = [
    Fault(
        "the disk becomes full",
        "full_disk",
        TRAIN,
        "exit 2",
        "reluformer: error: runs/tiny: cannot be written to (…; 0 MiB are free on its disk); "
        "the same command goes on at runs/tiny/checkpoint-2",
        "checkpoint-2",
        "going on at runs/tiny/checkpoint-2",
        same_end=True,
    ),
    Fault(
        "a folder that must not be written to",
        "read_only_disk",
        TRAIN,
        "exit 2",
        "reluformer: error: runs/tiny: cannot be written to (Read-only file system; … MiB are free on its disk); "
        "there is no complete checkpoint yet",
        "nothing was begun",
    ),
]
_DAMAGED = "checkpoint-2; checkpoint-4 is left as it is until it is written anew"
DAMAGES = [
    Fault(
        "a checkpoint is cut off",
        "cut_checkpoint",
        TRAIN,
        "exit 0",
        "runs/tiny/checkpoint-4: not used: optimizer.pt has … bytes, not the … that were written",
        _DAMAGED,
        same_end=True,
        test="tests/training/run/test_checkpoints.py",
    ),
    Fault(
        "a bit of a checkpoint flips",
        "flipped_bit",
        TRAIN,
        "exit 0",
        "runs/tiny/checkpoint-4: not used: the content of model.safetensors is not what was written",
        _DAMAGED,
        same_end=True,
        test="tests/training/run/test_checkpoints.py",
    ),
    Fault(
        "a file of a checkpoint is lost",
        "lost_file",
        TRAIN,
        "exit 0",
        "runs/tiny/checkpoint-4: not used: rng_state.pth is missing",
        _DAMAGED,
        same_end=True,
        test="tests/training/run/test_checkpoints.py",
    ),
    Fault(
        "every checkpoint is damaged",
        "all_damaged",
        TRAIN,
        "exit 0",
        "runs/tiny: no checkpoint can be used; training starts anew",
        "none",
        same_end=True,
        test="tests/training/run/test_checkpoints.py",
    ),
    Fault(
        "a damaged checkpoint that was asked for by name",
        "damaged_and_named",
        f"{TRAIN} --training.resume_from_checkpoint runs/tiny/checkpoint-4",
        "exit 2",
        "reluformer: error: training.resume_from_checkpoint: 'runs/tiny/checkpoint-4' cannot be used: the content of "
        "model.safetensors is not what was written; give another one",
        "checkpoint-2",
        test="tests/training/run/test_checkpoints.py",
    ),
]
DIVERGENCE = [
    Fault(
        "the loss becomes NaN or infinite",
        "diverged",
        f"{TRAIN} --training.learning_rate 1e30",
        "exit 2",
        "reluformer: error: training diverged: the loss is not finite since update 2; lower training.learning_rate, lengthen "
        "training.warmup_steps, or, with point-wise attention, raise model.attention_gamma (on_divergence: record keeps "
        "such a run as a result)",
        "the checkpoints before it was seen, at most 50 updates later",
        test="tests/training/run/test_divergence.py",
    ),
    Fault(
        "the same, where the recipe wants it recorded",
        "diverged_and_recorded",
        f"{TRAIN} --training.learning_rate 1e30 --on_divergence record",
        "exit 0",
        "training diverged: the loss is not finite since update 2; recorded in runs/tiny/training_record.json",
        "the record, no model",
        test="tests/training/run/test_divergence.py",
    ),
    Fault(
        "all rows of an attention module are dead",
        "dead_module",
        TRAIN,
        "exit 2",
        "reluformer: error: training diverged: all rows of decoder.layers.0.encoder_attn are dead (no key has a positive "
        "weight) since update 1 or before; raise model.regularization_weight or model.attention_gamma, or lower "
        "training.learning_rate (on_divergence: record goes on and keeps such a run as a result)",
        "the checkpoints before it was seen, at most 50 updates later",
        test="tests/training/run/test_divergence.py",
    ),
]
CHANGES = [
    Fault(
        "the recipe was changed",
        "changed_recipe",
        f"{TRAIN} --data.max_length 32",
        "exit 2",
        "reluformer: error: runs/tiny: holds checkpoints trained with data.max_length 64, the recipe says 32; give another "
        "name, or --overwrite to train anew",
        "checkpoint-2, checkpoint-4",
        test="tests/training/run/test_resumption.py",
    ),
    Fault(
        "an update would hold other batches",
        "changed_update",
        f"{TRAIN} --training.gradient_accumulation_steps 1",
        "exit 2",
        "reluformer: error: runs/tiny/checkpoint-4: was trained with 2 batches an update (1 process × 2 accumulation), this run "
        "would make updates of 1 (1 process × 1 accumulation); set training.gradient_accumulation_steps to 2 to go on, or "
        "train anew",
        "checkpoint-2, checkpoint-4",
        test="tests/training/run/test_global_batch.py",
    ),
    Fault(
        "another training is writing into the run folder",
        "second_training",
        f"{TRAIN} --overwrite",
        "exit 2",
        "reluformer: error: runs/tiny: another training is writing into it (process … on …, since …); wait until it ends, or "
        "give another name or training.output_dir",
        "everything",
        test="tests/training/run/test_overwriting.py",
    ),
    Fault(
        "the run has ended already",
        "finished",
        TRAIN,
        "exit 2",
        "reluformer: error: runs/tiny: holds a finished run; give another name or training.output_dir, or --overwrite to train "
        "it anew",
        "everything",
        test="tests/training/run/test_overwriting.py",
    ),
]
_LOST = "reluformer: a process of this run has ended or cannot be reached (…); the same command goes on at runs/tiny/checkpoint-…"
_ONE_GOES_ON = (
    "going on at runs/tiny/checkpoint-… (written by 2 processes, gone on with by 1: the same updates, with dropout masks of "
    "their own)"
)
PROCESSES = [
    Fault(
        "two processes go on where one was, with the same batches in an update",
        "more_processes",
        f"{TORCHRUN} --training.gradient_accumulation_steps 1",
        "exit 0",
        "going on at runs/tiny/checkpoint-4 (written by 1 process, gone on with by 2: the same updates, with dropout masks of "
        "their own)",
        "checkpoint-2, checkpoint-4, checkpoint-6",
        test="tests/distributed/test_processes.py",
        several_processes=True,
    ),
    Fault(
        "a worker of torchrun is killed, with --max_restarts",
        "killed_worker_restarted",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc_per_node 2 --max_restarts 1 -m reluformer train "
        "--config tiny.yaml",
        "exit 0",
        "going on at runs/tiny/checkpoint-…",
        "all before, as many as save_total_limit says",
        test="tests/training/run/test_elastic.py",
        several_processes=True,
    ),
    Fault(
        "restarts are asked for with workers that would wait for dead ones",
        "restarts_that_would_wait",
        "torchrun --nproc_per_node 2 --max_restarts 3 -m reluformer train --config tiny.yaml",
        "exit 2",
        "reluformer: error: torchrun --max_restarts 3: workers that are started again may wait for dead ones, since torchrun "
        "keeps their addresses; start it as `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --max_restarts 3 …`",
        "nothing was begun",
        test="tests/distributed/test_launch.py",
    ),
    Fault(
        "a worker of torchrun is killed, without restarts",
        "killed_worker",
        TORCHRUN,
        "exit 1",
        _LOST,
        "all before, as many as save_total_limit says",
        _ONE_GOES_ON,
        test="tests/training/run/test_elastic.py",
        several_processes=True,
    ),
    Fault(
        "one of two machines is lost",
        "lost_node",
        "torchrun --nnodes 2 … -m reluformer train --config tiny.yaml",
        "exit 1",
        _LOST,
        "all before, as many as save_total_limit says",
        _ONE_GOES_ON,
        test="tests/distributed/test_two_nodes.py",
        several_processes=True,
    ),
]
GROUPS = {
    "Signals": SIGNALS,
    "Disks": DISKS,
    "Damaged checkpoints": DAMAGES,
    "Divergence": DIVERGENCE,
    "Another command": CHANGES,
    "Processes and machines": PROCESSES,
}
