"""The command line on CuPy without a GPU (`tests.hostcuda`): `python on_gpus.py [FAULT RANK STEP] train ...`"""

import os
import runpy
import sys
import time

from tests import hostcuda

hostcuda.install()
if seconds := float(os.environ.get("SLOW_WRITES", 0)):
    from minicait.train.checkpoint import Snapshot

    real = Snapshot.write
    Snapshot.write = lambda *given: (time.sleep(seconds), real(*given))
if sys.argv[1] == "train":
    from minicait.cli import main

    sys.exit(main(sys.argv[1:]))
runpy.run_path(__file__.replace("on_gpus", "faulty"), run_name="__main__")
