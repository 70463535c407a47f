"""The command `preflight`: what would spoil a run, tried before it begins."""

from argparse import Namespace

from course_lm.cli.inspect import read_share
from course_lm.cli.preparation import check_same_tokenizer, own_tokenizer, prepare, settle_curriculum
from course_lm.config import TrainingConfig
from course_lm.display import table
from course_lm.distributed import connect
from course_lm.inspection import find, measure
from course_lm.model import count_parameters
from course_lm.profiling.preflight import ALL_ELSE, NOTE, OK, WRONG, Check, check_memory, preflight
from course_lm.trainer import budget
from course_lm.validation import ensure


def check_run(config: TrainingConfig, options: Namespace) -> int:
    """Print a line for each check of a run as configured; return 0 where none is wrong, else 1."""
    started, corpus = budget.clock(), config.data.corpus
    ensure(not corpus.endswith((".yaml", ".yml")), f"{corpus} is read as a text: give a configuration as --config")
    ensure(connect().world == 1, "preflight runs in one process, got several ranks: start it without torchrun")
    config = settle_curriculum(config)
    checks = [check_memory(config)]
    if checks[0].verdict == WRONG:  # before the model is made
        checks.append(ALL_ELSE)
    else:
        run = prepare(config)
        check_same_tokenizer(config, run.tokenizer)
        checks = preflight(run.model, config, run.train_loader, run.val_loader, started)
        documents, share, _ = read_share(corpus)
        text = measure(documents, config.data.vocab_size, own_tokenizer(config))
        findings = find(text, count_parameters(run.model), 1 - sum(config.data.fractions), share)
        checks += [Check("text", NOTE, str(finding)) for finding in findings] or [Check("text", OK, "nothing found")]
    print(table([(one.verdict, one.name, one.found) for one in checks], left=(0, 1, 2)))
    wrong = [one.name for one in checks if one.verdict == WRONG]
    missed = sum(one.found.startswith("left out") for one in checks)
    print(f"\nwrong: {', '.join(wrong) or 'nothing'}; left out: {missed}")
    return 1 if wrong else 0
