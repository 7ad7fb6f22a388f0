"""Calls while Python ends: they compute or raise, and the process ends as it was going to."""

import subprocess
import sys

import pytest

BEGIN = """
import atexit, builtins, ctypes, gc, sys, threading, torch, transfuse
from transfuse.stages import group_norm, max_pool, sigmoid

class Late:
    '''Calls when it goes, each time on weights that are not packed.'''

    def __init__(self, name, **options):
        self.name, self.call, self.say = name, transfuse.conv_transpose2d, sys.stdout.write
        self.given = torch.ones(1, 2, 5, 5), torch.ones(2, 3, 3, 3)
        self.options = options
        self.me = self  # only the collector frees it

    def again(self):
        x, w = self.given
        w.add_(1)
        return self.call(x, w, **self.options)

    def __del__(self):
        try:
            y, ones = self.again(), 2 * 3 * 9 * 25  # so many products
            said = 'right' if float(y.sum()) == ones * float(self.given[1].mean()) else 'WRONG'
        except Exception as error:
            said = f'{type(error).__name__}: {error}'
        self.say(f'{self.name}: {said}\\n')

class Unbatched(Late):
    def __init__(self, name):
        super().__init__(name)
        self.given = self.given[0][0], self.given[1]
"""
REFUSED = "RuntimeError: transfuse cannot be called while Python is shutting down"
PLACES = {
    "a global": "late0 = Late('late')",
    "garbage": "Late('late')",
    "unbatched": "late1 = Unbatched('late')",
    "eager": "late2 = Late('late', backend='eager')",
    "after a first call": "late3 = Late('late'); late3.again()",
    "large": "late4 = Late('late', stride=300)",
    "a global without a cycle": "late5 = Late('late'); del late5.me",
    "builtins": "builtins.late = Late('late')",
    "torch": "torch.late = Late('late')",
    "a module of torch": "torch.nn.functional.late = Late('late')",
    "ctypes": "ctypes.late = Late('late')",
    "sys": "sys.late = Late('late')",
    "transfuse": "transfuse.late = Late('late')",
    "a thread's own": "local = threading.local(); local.late = Late('late')",
}


def ended(code: str) -> tuple[int, str]:
    """How a process ends, and what it said; errors that Python ignores are no matter."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + code],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_objects_that_call_when_they_go() -> None:
    """Where Python has taken modules apart before, the error is about what is missing of them."""
    status, said = ended("\n".join(PLACES.values()))
    assert status == 0
    assert "WRONG" not in said
    assert REFUSED in said


@pytest.mark.long
@pytest.mark.parametrize("name", PLACES)
def test_an_object_that_calls_when_it_goes(name: str) -> None:
    status, said = ended(PLACES[name])
    assert status == 0
    assert "WRONG" not in said
    if name in list(PLACES)[:6]:
        assert said == f"late: {REFUSED}\n"


def test_handlers_at_exit_compute() -> None:
    status, said = ended("late = Late('late'); atexit.register(late.__del__)")
    assert (status, said) == (0, f"late: right\nlate: {REFUSED}\n")


@pytest.mark.parametrize(("end", "status"), [("sys.exit(7)", 7), ("raise ValueError", 1)])
def test_an_exit_keeps_its_status(end: str, status: int) -> None:
    assert ended(f"late = Late('late'); {end}") == (status, f"late: {REFUSED}\n")


THREADS = """
def work():
    late = Late('thread')
    for _ in range(20):
        late.again()
    late.__del__()
    late.say = lambda text: None
    END

threading.Thread(target=work).start()
"""


@pytest.mark.parametrize("end", ["sys.exit(3)", "1 / 0"])
def test_a_thread_that_outlives_the_main_one(end: str) -> None:
    """Python waits for it, and only then begins to end."""
    assert ended(THREADS.replace("END", end)) == (0, "thread: right\n")
