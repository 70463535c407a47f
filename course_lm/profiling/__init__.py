"""Where the time and the bytes of an optimizer step go (lesson 15).

step_profile.py measures the parts of a step, and memory_profile.py whose the memory is at its peak: ledger.py settles
that from the allocator's events. marks.py says which part runs when, parts.py what the parts are called. work.py counts
FLOPs and bytes, and machine.py measures what this machine can do. subject.py takes the steps and undoes them; events.py
records them with torch's profiler; display.py makes tables and bars. plan.py predicts from the configuration alone the
memory of a step (lesson 17), and what each of many ranks holds and sends (lesson 14), with what activations.py says of
a micro-batch.
"""

from course_lm.profiling.ledger import OWNERS
from course_lm.profiling.machine import Machine
from course_lm.profiling.memory_profile import MemoryProfile, profile_memory
from course_lm.profiling.plan import step_memory
from course_lm.profiling.step_profile import Part, StepProfile, profile_step

__all__ = ["OWNERS", "Machine", "MemoryProfile", "Part", "StepProfile", "profile_memory", "profile_step", "step_memory"]
