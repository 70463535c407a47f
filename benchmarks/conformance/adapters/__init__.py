"""An adapter for each trainer: what drives its own loop on the batches of the audit.

A module here has `PACKAGE`, the distribution whose version is printed; `NOT_OFFERED`, promise -> why the trainer has no
such thing; and `loop(model, epochs, settings)` as `course_lm.audit.audit` wants it, or `LOOPS`, a dict label -> loop
where a documented setting makes a line of its own. It may have more:

- `NOT_TRIED`: promise -> why the adapter does not try it.
- `CALLED`: promise -> what a departure is called that a script confirms, instead of "broken".
- `MEANT`: label -> the promise of the run that shows a fault -> the promise that this fault breaks.
- `CONFIRM`: the adapter whose scripts are meant, where these are not its own.
- `VERSION`: the version of a package that is not installed.
- `RESUMES`: label -> a loop that stops and goes on, as `audit_resume` wants it, for C13.
- `PRECISION`: "float32" for a trainer that refuses float64.

The file `requirements/NAME.txt` pins what it needs. A script in `confirm/` shows a fault with the trainer alone: it
gets the promise ("c5") and the label of the line, prints the wrong number beside the right one, and exits with 0 where
the fault is there. Its docstring stands below the table: what differs, the public issue, and the documented setting
that avoids it. It is named `NAME_c5_what.py`, or for several promises `NAME_c3_c5.py`, and then a paragraph of its
docstring begins with "C5:".
"""
