"""The command `speedrun`: how near a loop comes to the floor within a budget of FLOPs; it is audited first."""

from argparse import Namespace

from course_lm.cli.audit import load
from course_lm.cli.output import to_standard_error
from course_lm.display import table


def run_file(options: Namespace) -> int:
    """Audit the loop beside the entry FILE.py:FUNCTION, run the entry, print what it reached; return 1 for unsound.

    What the entry itself writes goes to standard error.

    Raises:
        ValueError: a target that cannot be read, or an entry that breaks the rules.
    """
    entry = load(options.target)
    from course_lm.audit import audit
    from course_lm.audit.speedrun import BUDGET, loop_of, run_entry

    flops = BUDGET if options.flops is None else options.flops
    with to_standard_error():
        report = audit(loop_of(entry))
        found = run_entry(entry, seed=options.seed, flops=flops) if report.sound else None
    if found is None:
        print(report)
        return 1
    rows = [
        ("audit", str(report).splitlines()[0]),
        ("FLOPs", f"{found.flops:.4g}"),
        ("minutes", f"{found.seconds / 60:.2f}"),
        ("nats per token above the floor", f"{found.above_floor:.4f}"),
    ]
    print(table(rows))
    return 0
