"""Batches from documents (lesson 02).

batch.py says what a batch holds. loader.py makes batches, fixed, dynamic, bucketed or packed, and remembers its place.
packing.py encodes documents and fits their pieces into rows. capabilities.py says what a training loader may be able to
do, and asks it. reading.py reads any loader a second time, as evaluation and trials do, without a trace.
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
