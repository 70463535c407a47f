"""The loop, put together (lesson 12).

loop.py is the Trainer. run.py is what is around it: folder, loggers, length, signals. log.py counts and records its
steps; made_by.py notes how each session was made. init_from.py begins a run with the weights of another one; resume.py
says what may change when a run goes on, and code.py whether its code has changed. budget.py says how many steps fit
into the minutes of a run. allocator.py keeps memory from going back to the system between steps, and waiting.py gives
cores to other work while threads wait.
"""

from course_lm.trainer.loop import Trainer

__all__ = ["Trainer"]
