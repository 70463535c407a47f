"""What lessons use; nothing that trains imports it.

lessons.py runs the notebooks, stored_outputs.py keeps what they show. workspace.py gives a learner copies of them, and
progress.py reads from the copies which exercises are solved. checks/ marks the exercises; widgets/ and plots.py draw,
live.py a run as it goes, or one that is over; atlas.py holds the learning curves of a healthy run and of typical
illnesses.
"""
