"""Watch a run: what is recorded, where it is shown, and when to stop early.

An observer is told what happened. A record is a flat dict with "event" ("train", "validation", "epoch", "layers" or
"length"), "step" (completed optimizer steps), "epoch" and metrics. Every observer gets its own copy; one that raises is
left out while training goes on, for a log that cannot be written is no reason to lose a run; and what it draws at
random is undone.

evaluation.py measures a validation; records.py keeps and sums up what was measured. observers.py tells observers, and
writes metrics.jsonl; trackers.py has TensorBoard and Weights & Biases; progress.py shows a run as it goes. layers.py
looks at each layer, smoothing.py draws calm curves, stopping.py stops early.
"""

from course_lm.monitoring.evaluation import evaluate
from course_lm.monitoring.layers import copy_weights, layer_statistics, update_ratios
from course_lm.monitoring.observers import JSONLLogger, Observer, Observers
from course_lm.monitoring.progress import ProgressBar
from course_lm.monitoring.records import History, Record, Throughput, peak_memory, summarise
from course_lm.monitoring.smoothing import smooth
from course_lm.monitoring.stopping import EarlyStopping
from course_lm.monitoring.trackers import TensorBoardConfig, TensorBoardLogger, WandbConfig, WandbLogger

__all__ = [
    "EarlyStopping",
    "History",
    "JSONLLogger",
    "Observer",
    "Observers",
    "ProgressBar",
    "Record",
    "TensorBoardConfig",
    "TensorBoardLogger",
    "Throughput",
    "WandbConfig",
    "WandbLogger",
    "copy_weights",
    "evaluate",
    "layer_statistics",
    "peak_memory",
    "smooth",
    "summarise",
    "update_ratios",
]
