"""A part of a long search in a process of its own, and what it leaves when the process ends."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

from fuzz.call import Call
from fuzz.oracle import DisagreementError
from fuzz.script import as_script
from fuzz.search import Tally, search


def search_slice(examples: int, number: int, folder: str) -> Tally | str:
    """Checks random calls; of each that runs there is a file in the folder.

    Args:
        examples: How many.
        number: The seed.
        folder: Where the process keeps the call that it runs.

    Returns:
        The tally, or what failed and a program that shows it.
    """
    running = Path(folder, str(os.getpid()))

    def remember(call: Call) -> None:
        running.write_bytes(pickle.dumps(call))

    try:
        return search(examples, number=number, on_call=remember)
    except DisagreementError as failure:
        return str(failure)
    finally:
        running.unlink(missing_ok=True)


def find_fatal_call(folder: str) -> str:
    """Returns a program of the call that ended a process: of those that ran, one that ends another.

    Args:
        folder: As for `search_slice`.
    """
    for running in Path(folder).iterdir():
        script = as_script(pickle.loads(running.read_bytes()))
        if subprocess.run([sys.executable, "-c", script], capture_output=True).returncode < 0:
            return f"the process ended\n\n{script}"
    return "a process ended, but not again on the call that it ran\n\n"
