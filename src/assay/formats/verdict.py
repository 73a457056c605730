"""Format of a verdict, version 1: equal bits, or the first difference. Kept with its runs.

That of an export says whether the exported model was within its tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.formats.trace_file import Phase

FORMAT = 1

Question = Literal["compare", "replay", "diverge", "verify-resume", "prove", "export"]
Cause = Literal[
    "data order",
    "randomness",
    "init",
    "forward",
    "backward",
    "optimizer",
    "code",
    "config",
    "data",
    "environment",
    "evaluation",
    "an input outside the record changed",
    "data or data order: not traced",
    "data, init or forward: not traced",
    "forward or backward: not traced",
    "this step or one before it: not traced",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """First place at which two runs differ.

    `op` is known once the step was repeated at op level.
    """

    step: int
    phase: Phase
    module: str = ""
    name: str = ""
    op: str = ""
    occurrence: int = 0
    left: str = ""
    right: str = ""

    @property
    def place(self) -> str:
        """Phase, module and tensor or operation, as one text.

        >>> Difference(step=3, phase="forward", module="model.head", op="aten.mm").place
        'forward, model.head: aten.mm'
        """
        within = f"{self.phase}, {self.module}" if self.module else self.phase
        is_repeated = self.op and self.occurrence
        again = f" (call {self.occurrence + 1} of the step)" if is_repeated else ""
        return f"{within}: {self.op or self.name}{again}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`equal` is claimed only for the steps that were compared (`first_step` to `last_step`).

    `changed_inputs` lists what differs between the two runs although it should not, with both
    sides' values.
    """

    format: int = FORMAT
    question: Question
    runs: tuple[str, ...]
    equal: bool
    first_step: int
    last_step: int
    compared: int
    difference: Difference | None = None
    cause: Cause | None = None
    changed_inputs: Mapping[str, Any] = field(default_factory=dict)
    at_ns: int = 0
    note: str = ""

    @property
    def said(self) -> str:
        """The verdict as one line.

        >>> steps = {"first_step": 1, "last_step": 32, "compared": 96}
        >>> Verdict(question="replay", runs=("a", "b"), equal=True, **steps).said
        'replay: equal, steps 1 to 32'
        """
        if self.question == "export":
            within = "within" if self.equal else "not within"
            return f"export: {within} its tolerance, step {self.last_step}: {self.note}"
        stretch = f"steps {self.first_step} to {self.last_step}"
        if self.difference is None:
            return f"{self.question}: {'equal' if self.equal else 'not equal'}, {stretch}"
        first = self.difference
        return f"{self.question}: not equal, {stretch}, first at step {first.step}, {first.place}"
