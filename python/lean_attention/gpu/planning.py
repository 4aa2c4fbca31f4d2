"""How a step is cut into shares, and the workspace that this takes."""

import ctypes
from dataclasses import dataclass

from lean_attention.gpu.c_functions import CPlan, CStep, call, check_kind, fill, flag, integer
from lean_attention.gpu.step import Step
from lean_attention.gpu.streams import current
from lean_attention.kernels import Schedule

__all__ = ["Plan", "plan", "plan_of"]


@dataclass(frozen=True)
class Plan:
    """How a step is cut; the result does not depend on it.

    Attributes:
        schedule: How the stream of tiles is cut.
        blocks: Of the grid; block b takes shares b, b + blocks, b + 2 blocks, ...
        amount: Shares (lean) or pieces per sequence and head (fixed_split); 1 for direct.
        shares: All of them.
        state_bytes: Of the workspace's states.
        counters: Of the workspace, int32 each.
        is_persistent: Whether all blocks run at the same time.
        explanation: One line: the decision, why, and what it was made from.
    """

    schedule: Schedule
    blocks: int
    amount: int
    shares: int
    state_bytes: int
    counters: int
    is_persistent: bool
    explanation: str

    def c_plan(self) -> CPlan:
        """Returns the structure that the C functions take.

        Raises:
            LeanAttentionError: A field has something else than its type.
        """
        return fill(
            CPlan(),
            schedule=self.schedule,
            blocks=self.blocks,
            amount=self.amount,
            shares=self.shares,
            state_bytes=self.state_bytes,
            counters=self.counters,
            is_persistent=flag("is_persistent", self.is_persistent),
        )


def plan(
    step: Step,
    *,
    schedule: Schedule | None = None,
    amount: int = 0,
    blocks: int = 0,
) -> Plan:
    """Plans a step; every plan gives the same bits.

    Args:
        step: What is to be run; its tensors' numbers are not looked at.
        schedule: None: the policy chooses, as it also does for more than 8 query tokens.
        amount: Shares (lean) or pieces per sequence and head (fixed_split), at most 65,536; 0: the
            policy chooses.
        blocks: Of the grid; 0: one for each share.

    Returns:
        The plan. It is right for other lengths up to the step's ``max_length``, and for other steps
        of as many sequences and KV heads whose workspace is no larger.

    Raises:
        LeanAttentionError: The step, or the cut, is not what the kernel takes.
    """
    check_kind("step", step, Step)
    c_step = step.c_step()
    with current(step.query, None):
        return plan_of(c_step, schedule=schedule, amount=amount, blocks=blocks)


def plan_of(
    c_step: CStep, *, schedule: Schedule | None = None, amount: int = 0, blocks: int = 0
) -> Plan:
    """Plans a step that is described; see `plan`."""
    made = CPlan()
    explanation = call(
        "make_plan",
        c_step,
        integer("schedule", -1 if schedule is None else schedule, ctypes.c_int32),
        integer("amount", amount, ctypes.c_int64),
        integer("blocks", blocks, ctypes.c_int32),
        made,
    )
    return Plan(
        schedule=Schedule(made.schedule),
        blocks=made.blocks,
        amount=made.amount,
        shares=made.shares,
        state_bytes=made.state_bytes,
        counters=made.counters,
        is_persistent=bool(made.is_persistent),
        explanation=explanation,
    )
