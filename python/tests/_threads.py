# SPDX-License-Identifier: Apache-2.0
"""Work of several threads at once."""
from concurrent.futures import ThreadPoolExecutor
import threading


def in_threads(work, given):
    """The results of work(x) for each x, on a thread each; raises what one of them raised."""
    given = list(given)
    with ThreadPoolExecutor(len(given), initializer=threading.Barrier(len(given)).wait) as pool:
        return list(pool.map(work, given))
