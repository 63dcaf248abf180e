"""Ctrl-C waits for what must come to its end, and is not forgotten."""

from __future__ import annotations

import signal
import threading

import pytest

from afd.launch.signals import undisturbed


def test_ctrl_c_counts_when_the_block_is_over() -> None:
    before = signal.getsignal(signal.SIGINT)
    ended = []
    with pytest.raises(KeyboardInterrupt), undisturbed():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        ended.append(True)
    assert ended
    assert signal.getsignal(signal.SIGINT) is before


def test_a_block_that_fails_says_so_and_gives_ctrl_c_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), undisturbed():
        _ = 1 // 0
    assert signal.getsignal(signal.SIGINT) is before


def test_a_block_in_another_thread_leaves_ctrl_c_alone() -> None:
    seen = []

    def block() -> None:
        with undisturbed():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
