"""The command `preflight`: what would spoil a run, tried before it begins."""

from argparse import Namespace

from course_lm.cli.inspect import find_in_text
from course_lm.cli.preparation import prepare, settle_curriculum
from course_lm.config import TrainingConfig
from course_lm.display import table
from course_lm.distributed import connect
from course_lm.profiling.preflight import NOTE, WRONG, Check, check_memory, left_out, preflight
from course_lm.validation import ensure


def check_run(config: TrainingConfig, _: Namespace) -> int:
    """Print a line for each check of a run as configured; return 0 where none is wrong, else 1."""
    corpus = config.data.corpus
    ensure(not corpus.endswith((".yaml", ".yml")), f"{corpus} is read as a text: give a configuration as --config")
    ensure(connect().world == 1, "preflight runs in one process, got several ranks: start it without torchrun")
    config = settle_curriculum(config)
    checks = [check_memory(config)]
    if checks[0].verdict == WRONG:  # before the model is made
        checks += left_out("all else", "nothing is computed where memory is too small")
    else:
        run = prepare(config)
        checks = preflight(run.model, config, run.train_loader, run.val_loader)
        findings = find_in_text(config).findings
        checks += [Check("text", NOTE, str(finding)) for finding in findings] or [Check("text", "ok", "nothing found")]
    print(table([(one.verdict, one.name, one.found) for one in checks], left=(0, 1, 2)))
    wrong = [one.name for one in checks if one.verdict == WRONG]
    missed = sum(one.found.startswith("left out") for one in checks)
    print(f"\nwrong: {', '.join(wrong) or 'nothing'}; left out: {missed}")
    return 1 if wrong else 0
