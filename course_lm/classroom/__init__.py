"""What only lessons use; nothing that trains imports it.

lessons.py runs the notebooks, stored_outputs.py keeps what they show. workspace.py gives a learner copies of them. checks/ marks the exercises; widgets/ and plots.py draw;
atlas.py holds the learning curves of a healthy run and of typical illnesses.
"""
