"""Build it yourself: a learner writes an engine and a small CaiT, graded exercise by exercise.

exercise    what an exercise is, and what its check found
exercises   the list of exercises
hints       two or three hints for each, from vague to concrete
starters    the files that `minicait learn init` lays out: signatures and docstrings, without solutions
learner     a learner's folder, imported file by file
compare     the learner's values beside the project's, and the sentence about the first that differs
functions   checks of a Function: forward and backward
composed    checks of a function of Tensors: its value, and the gradients that the learner's engine computes
checks      one file of checks for each part of the chapters
limit       a time limit for code that may never end
grade       runs a check, and says in one sentence what it found
progress    what was found, remembered in the learner's folder

Grading runs the learner's code in this process, as pytest would.
"""

from .exercise import Exercise, Result
from .exercises import EXERCISES, find
from .grade import grade, grade_all
from .hints import HINTS
from .starters_folder import lay_out

__all__ = ["EXERCISES", "HINTS", "Exercise", "Result", "find", "grade", "grade_all", "lay_out"]
