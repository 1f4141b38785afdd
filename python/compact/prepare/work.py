# SPDX-License-Identifier: Apache-2.0
"""Rows to tokens, in this process or in several, in their order."""
import ctypes
import multiprocessing
import os
import signal
import sys
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from itertools import islice

import numpy

from .forms import sample_of, train_on_of
from .refusal import Refusal
from .token_file import marked
from .tokens import begin_together, cut

COUNTS = ("rows", "samples", "pairs", "cut", "dropped", "equal", "tokens", "targets")
AT_ONCE = 64  # rows that go to a process
PR_SET_PDEATHSIG = 1  # of prctl(2): the signal when the parent ends


class Rows:
    """Makes of rows (number of the set, place, row) their ids as the file has them, and each set's COUNTS.
    `forms`: of each set. `train_on`: None leaves it to each row."""

    def __init__(self, reader, forms, train_on, max_length, truncation):
        self.reader, self.forms, self.train_on = reader, forms, train_on
        self.cutting = (max_length, truncation, reader.begin)

    def _sample(self, form, row):
        """Its samples, two of a pair, each as ids and which are learnt, and what happened to them."""
        on = train_on_of(form, row, self.train_on)
        sample, pair = sample_of(form, row), form == "preference"
        if form == "text":
            ids = self.reader.text(sample.completion)
            return [(ids, [True] * len(ids))], ""
        samples = []
        for one in sample if pair else [sample]:
            if one.prompt is not None:
                ids, learnt = self.reader.pair(one.prompt, one.completion)
            else:
                ids, learnt = self.reader.chat(one.messages, one.begin, one.tools, on == "completion" and not pair)
            samples.append((ids, [True] * len(ids) if on == "all" else learnt))
        if pair:
            begin_together(samples)
        samples, what = cut(samples, *self.cutting)
        return ([], "equal") if pair and samples and samples[0] == samples[1] else (samples, what)

    def __call__(self, rows):
        counts = [dict.fromkeys(COUNTS, 0) for _ in self.forms]
        out = [numpy.zeros(0, dtype=numpy.uint32)]
        for number, place, row in rows:
            form = self.forms[number]
            try:
                samples, what = self._sample(form, row)
            except UnicodeEncodeError:
                raise Refusal(f"{place}: must be Unicode, has half of a pair of surrogates") from None
            except Refusal as refusal:
                raise Refusal(f"{place}: {refusal}") from None
            text = form == "text"
            own = {"rows": 1, "samples": len(samples), "pairs": len(samples) == 2}
            own |= {"tokens": sum(len(ids) for ids, _ in samples), "targets": sum(sum(learnt[not text :]) for _, learnt in samples)}
            for name, count in (own | ({what: 1} if what else {})).items():
                counts[number][name] += int(count)
            out += [numpy.asarray(ids, dtype=numpy.uint32) if text else marked(ids, learnt) for ids, learnt in samples]
        return numpy.concatenate(out), counts


def _set_up(rows, parent, lock):
    """A process ends with its parent, and never holds the lock of the parent's folder."""
    global _rows
    _rows = rows
    os.close(lock)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when it is over,
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by this where another process has ended
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before that
        os._exit(1)


def _in_process(rows):
    return _rows(rows)


def worked(rows, work, processes, lock):
    """The results of `work` for AT_ONCE rows after the other; no more rows are held than the processes have to do.
    `lock`: the descriptor that this process alone shall hold."""
    batches = iter(lambda: list(islice(rows, AT_ONCE)), [])
    if processes < 2:
        yield from map(work, batches)
        return
    waiting = deque()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, _set_up, (work, os.getpid(), lock)) as pool:
        try:
            for batch in batches:
                waiting.append(pool.submit(_in_process, batch))
                if len(waiting) > 2 * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
