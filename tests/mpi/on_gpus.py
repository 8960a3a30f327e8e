"""The command line on CuPy without a GPU (`tests.hostcuda`): `python on_gpus.py [FAULT RANK STEP] train ...`"""

import runpy
import sys

from tests import hostcuda

hostcuda.install()
if sys.argv[1] == "train":
    from minicait.cli import main

    sys.exit(main(sys.argv[1:]))
runpy.run_path(__file__.replace("on_gpus", "faulty"), run_name="__main__")
