"""python -m tests.attack.fuzz: fuzz readers, or replay findings. README.md explains it."""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from .readers import READERS
from .runner import FINDINGS, fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack.fuzz")
    parser.add_argument("--seconds", type=float, default=0, help="in all, shared among the readers")
    parser.add_argument("--examples", type=int, default=100, help="at least so many for every reader")
    parser.add_argument("--seed", type=int, default=0, help="of the first draw of each reader")
    parser.add_argument("--reader", choices=READERS, action="append", help="only this one; may be repeated")
    parser.add_argument("--findings", type=Path, default=FINDINGS, help="folder for files that break a reader")
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each reader")
    parser.add_argument(
        "--replay", type=Path, nargs="+", help="read these files once, with the traceback of what happens"
    )
    args = parser.parse_args()
    if args.replay:
        return replay(args.replay)
    readers = [READERS[name] for name in args.reader or READERS]
    found = 0
    for reader in readers:
        outcome = fuzz(reader, args.seed, args.examples, args.seconds / len(readers), args.findings)
        print(json.dumps(asdict(outcome)) if args.json else outcome, flush=True)
        for finding in () if args.json else outcome.findings:
            print(
                f"  {finding}\n  replay: python -m tests.attack.fuzz --replay {finding.partition(chr(9))[0]}",
                flush=True,
            )
        found += len(outcome.findings)
    return 1 if found else 0


def replay(paths: list[Path]) -> int:
    """Read each file by the reader that its name begins with; an error that is not allowed is raised."""
    for path in paths:
        reader = max((r for r in READERS.values() if path.name.startswith(r.name)), key=lambda r: len(r.name))
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / reader.file_name
            copy.write_bytes(path.read_bytes())
            try:
                reader.read(copy)
                print(f"{path}: accepted")
            except reader.errors as error:
                print(f"{path}: refused: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
