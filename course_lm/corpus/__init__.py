"""Text to train on (lesson 01): a corpus is a list of documents, each a string.

load.py finds a corpus by its name or path and splits it; files.py reads anybody's own text, hub.py Hugging Face
datasets. large.py reads what is too large to be held. shipped.py says where the files of the package lie.
"""

from course_lm.corpus.load import Corpus, load_corpus

__all__ = ["Corpus", "load_corpus"]
