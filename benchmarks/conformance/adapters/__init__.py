"""An adapter for each trainer: what drives its own loop on the batches of the audit.

A module here has `PACKAGE`, the distribution whose version is printed; `NOT_OFFERED`, promise -> why the trainer has no
such thing; and `loop(model, epochs, settings)` as `course_lm.audit.audit` wants it, or `LOOPS`, a dict label -> loop
where a documented setting makes a line of its own. `PRECISION` is "float32" for a trainer that refuses float64. The
file `requirements/NAME.txt` pins what it needs. A script in `confirm/` shows a fault with the trainer alone: it prints
the wrong number beside the right one, and exits with 0 where the fault is there. Its docstring stands in the table:
what differs, the public issue, and the documented setting that avoids it. It is named `NAME_c5_what.py`, or for several
promises `NAME_c3_c5.py`: it gets "c5" as its argument, and a paragraph of its docstring begins with "C5:". `CONFIRM`
names the adapter whose scripts are meant, where these are not its own.
"""
