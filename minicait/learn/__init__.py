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
source      what the text of a file says before it runs: unwritten functions, imports
limit       a time limit for code that may never end
verdict     runs one check, and says in one sentence what it found
grade       the results of exercises, and which earlier one is to blame
worker      runs checks in a process of their own
progress    which exercises have passed, remembered in the learner's folder

`minicait learn` runs the learner's code in a process of its own; `grade` runs it in this one, as pytest would.
"""

from .exercise import Exercise, Result
from .exercises import EXERCISES, find
from .grade import grade
from .hints import HINTS
from .starters_folder import lay_out

__all__ = ["EXERCISES", "HINTS", "Exercise", "Result", "find", "grade", "lay_out"]
