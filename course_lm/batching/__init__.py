"""Batches from documents (lesson 02).

batch.py says what a batch holds. loader.py makes batches, fixed, dynamic, bucketed or packed, and keeps its position.
packing.py encodes documents and fits their pieces into rows. capabilities.py says what a training loader may offer
besides batches, and alone asks for it. reading.py lets evaluation and trials read a loader without leaving a trace.
"""

from course_lm.batching.batch import AnyBatch, Batch
from course_lm.batching.loader import (
    IGNORE_INDEX,
    MODES,
    Loader,
    epoch_generator,
    labels_of,
    make_loader,
    pack_rows,
    pad_rows,
    padding_share,
)

__all__ = [
    "IGNORE_INDEX",
    "MODES",
    "AnyBatch",
    "Batch",
    "Loader",
    "epoch_generator",
    "labels_of",
    "make_loader",
    "pack_rows",
    "pad_rows",
    "padding_share",
]
