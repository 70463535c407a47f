"""Batches from documents (lesson 02).

batch.py says what a batch holds. loader.py makes batches, fixed, dynamic, bucketed or packed, and keeps its position.
packing.py encodes documents and fits their pieces into rows; token_store.py keeps the ids of a large text on the
disk. data.py reads any loader from any place, for one rank or several, and lets evaluation and trials read one without
leaving a trace. workers.py says how worker processes take signals.
"""

from course_lm.batching.batch import AnyBatch, Batch
from course_lm.batching.data import EVERYTHING, Share
from course_lm.batching.loader import (
    IGNORE_INDEX,
    MODES,
    Loader,
    epoch_generator,
    labels_of,
    make_loader,
    pad_rows,
    padding_share,
)

__all__ = [
    "EVERYTHING",
    "IGNORE_INDEX",
    "MODES",
    "AnyBatch",
    "Batch",
    "Loader",
    "Share",
    "epoch_generator",
    "labels_of",
    "make_loader",
    "pad_rows",
    "padding_share",
]
