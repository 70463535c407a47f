"""The audit of a training loop: sound, or its faults by name, or the part that departs from the specification.

- spec: the loop once more, slow and plain, and the faults by name
- examine: `audit`, `assert_sound`
- runs, model: the crafted runs in the order in which features are switched on, and the tiny model that they train
- play, outcome: one run of the loop, and what it leaves
- features: settings that a loop may not have
- search: the smallest set of faults that explains all runs
- observe: what the weights do not show
- adapters: loops made of a step function, or of the Trainers of Hugging Face and Lightning
- on_ranks, spec_ranks: a loop on several ranks, and the faults that only ranks have
- resume, spec_resume: a loop that stops and goes on, and what it may lose
- locate, report: the run that departs, its numbers beside the right ones, and how all this is said
"""

from course_lm.audit.adapters import huggingface, lightning, step_function
from course_lm.audit.examine import assert_sound, audit
from course_lm.audit.observe import ObserveReport, observe
from course_lm.audit.report import AuditReport
from course_lm.audit.resume import audit_resume
from course_lm.audit.runs import PARTS, Case

__all__ = [
    "PARTS",
    "AuditReport",
    "Case",
    "ObserveReport",
    "assert_sound",
    "audit",
    "audit_resume",
    "huggingface",
    "lightning",
    "observe",
    "step_function",
]
