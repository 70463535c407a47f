"""Text to train on (lesson 01): a corpus is a list of documents, each a string.

load.py finds a corpus by its name or path and splits it; files.py reads anybody's own text, hub.py Hugging Face
datasets. large.py reads what is too large to be held. stories.py writes the shipped stories from a grammar of our own
(grammar.py). shipped.py says where the files of the package lie.
"""

from course_lm.corpus.load import Corpus, load_corpus
from course_lm.corpus.stories import Story, generate_stories, story_neg_log_p, write_stories

__all__ = ["Corpus", "Story", "generate_stories", "load_corpus", "story_neg_log_p", "write_stories"]
