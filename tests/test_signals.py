"""Signals set a flag, and every rank raises at the next place where all ask."""

from __future__ import annotations

import os
import signal

import pytest

from ala_encoder import command, ranks, signals
from ala_encoder.errors import RunSaved, RunStopped
from ala_encoder.settings.experiment import PretrainRun


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", signals.ASKING)
def test_a_signal_is_told_at_the_next_check_and_not_before(number: signal.Signals) -> None:
    with signals.listening():
        ranks.check_signals()
        send(number)
        with pytest.raises(signals.Asked, match=rf"{number.name} on rank 0"):
            ranks.check_signals()


def test_g04_further_signals_change_nothing() -> None:
    with signals.listening():
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
            send(number)
        with pytest.raises(signals.Asked, match=r"SIGTERM and SIGUSR1 on rank 0"):
            ranks.check_signals()


def test_what_came_before_is_forgotten_and_handlers_are_given_back() -> None:
    earlier = [signal.getsignal(number) for number in signals.ASKING]
    with signals.listening():
        send(signal.SIGUSR1)
    assert [signal.getsignal(number) for number in signals.ASKING] == earlier
    with signals.listening():
        ranks.check_signals()
    ranks.check_signals()


@pytest.mark.parametrize(
    ("error", "code"), [(RunSaved("saved"), 85), (RunStopped("no progress"), 1)]
)
def test_a_run_that_was_asked_to_leave_ends_with_a_code_of_its_own(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    def main(_: PretrainRun) -> None:
        raise error

    words = ["configs/small/books.yaml"]
    assert command.run(main, PretrainRun, "", argv=words) == code
    assert str(error) in capsys.readouterr().err
