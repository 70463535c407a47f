"""What is done with a run after its training; nothing that trains imports it.

run_folder.py reads a run's folder, without torch; finished_run.py opens the model and tokenizer in it; by_document.py
measures a model, with intervals over documents. ranks.py is no part of that: a function on several processes, for
lessons and the audit.
"""
