"""What names the mistake of an answer: small edits of the solution, and what tells their results apart.

edits.py, expressions.py and statements.py make every small edit of a solution; store.py keeps those that matter and
runs them; outcomes.py calls an answer and watches it; naming.py looks for the edit whose results an answer has;
relations.py and departure.py say how and where results differ that no edit gives; attempts.py remembers the last one.
"""
