"""Calls with extreme integers and odd tensors, from Python and from C: none may end the process.

    python -m tests.fuzzing --calls 100000 --seed 0

Every call is made of (seed, number) alone. A call that is legal must give the right result; one
that is not must raise what torch would, or give 1, and leave the output as it was. The calls run in
a child process: where it dies or hangs, the call is printed with the command that repeats it, and
another child goes on after it. ``TRANSFUSE_CORE`` names a core with sanitizers.
"""

import argparse
import os
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from select import select

import torch

from tests.fuzzing import drawing
from tests.fuzzing.drawing import Maker
from tests.fuzzing.from_c import from_c
from tests.fuzzing.from_python import from_python
from tests.fuzzing.problems import of_problems
from tests.fuzzing.programs import of_programs
from tests.fuzzing.sweeps import of_sweeps

KINDS = (
    from_python,
    from_python,
    from_python,
    from_c,
    from_c,
    of_programs,
    of_programs,
    of_problems,
    of_sweeps,
    of_sweeps,
)


def one(seed: int, number: int, loud: bool = False) -> str:
    random = Random(f"{seed} {number}")
    torch.set_num_threads(2 if random.random() < 0.05 else 1)
    kind = random.choice(KINDS)
    try:
        found = kind(Maker(random))
    except Exception as error:
        found = f"WRONG {type(error).__name__}: {error}\n    {drawing.described}"
    if loud:
        print(f"{kind.__name__}: {drawing.described}\n{found}")
    return found if found.startswith("WRONG") else f"{kind.__name__} {found}"


def child(seed: int, first: int, calls: int) -> None:
    """Run calls and write a line before and after each."""
    if "libasan" not in os.environ.get(
        "LD_PRELOAD", ""
    ):  # which keeps more addresses than there is memory
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, used + 2**31))
    for number in range(first, first + calls):
        print(f"call {number}", flush=True)
        print("done", one(seed, number).replace("\n", "\r"), flush=True)


def parent(seed: int, calls: int, seconds: float) -> int:
    """Keep a child at work until all calls are made; the number of those that went wrong."""
    counts: Counter[str] = Counter()
    faults, number = 0, 0
    repeat = f"python -m tests.fuzzing --seed {seed} --only"
    while number < calls:
        command = [
            sys.executable,
            "-m",
            "tests.fuzzing",
            "--seed",
            str(seed),
            "--calls",
            str(calls - number),
        ]
        with subprocess.Popen(
            [*command, "--child", str(number)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            ended = "it ended"
            while True:
                if not select([process.stdout], [], [], seconds)[0]:
                    process.kill()
                    ended = f"it took more than {seconds:g} s"
                    break
                line = process.stdout.readline().decode()
                if not line:
                    break
                if line.startswith("call "):
                    number = int(line.split()[1])
                elif line.startswith("done WRONG"):
                    faults += 1
                    print(
                        f"{repeat} {number}\n  {line[5:].strip()}".replace("\r", "\n"), flush=True
                    )
                    number += 1
                elif line.startswith("done "):
                    counts[line[5:].strip()] += 1
                    number += 1
        if number < calls:
            faults += 1
            print(f"{repeat} {number}\n  {ended}, status {process.returncode}", flush=True)
            number += 1
    for name, count in sorted(counts.items()):
        print(f"{count:8}  {name}")
    print(f"{calls} calls, seed {seed}: {faults} wrong")
    return faults


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--calls", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--seconds", type=float, default=120, help="that one call may take")
    options.add_argument("--only", type=int, help="one call, in this process")
    options.add_argument("--child", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.only is not None:
        one(given.seed, given.only, loud=True)
    elif given.child is not None:
        child(given.seed, given.child, given.calls)
    else:
        sys.exit(bool(parent(given.seed, given.calls, given.seconds)))
