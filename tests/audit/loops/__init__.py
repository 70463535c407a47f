"""Training loops that share nothing with the specification: what the audit is tried on.

`textbook`: a loop with each of the specification's faults as a switch. `outside`: loops with one mistake that is not
among those faults. `issues`: loops with mistakes that public issues report. `right`: right loops in many guises. All
three are variations of `plain`.
"""
