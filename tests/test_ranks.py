"""What the launcher set, and what must not be believed."""

from __future__ import annotations

import pytest

from ala_encoder import ranks
from ala_encoder.errors import UserError


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE = 2 without RANK"),
        ({"WORLD_SIZE": "0", "RANK": "0"}, "WORLD_SIZE = 0"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK = 2"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "WORLD_SIZE = 'two'"),
    ],
)
def test_a_world_that_cannot_be_is_refused(
    given: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone process that believed WORLD_SIZE=2 trained on half of each batch."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=told):
        ranks.rank()


def test_on_main_hands_on_the_result_and_the_mistake() -> None:
    def fail() -> None:
        raise UserError("told")

    assert ranks.on_main(lambda: 3) == 3
    with pytest.raises(UserError, match="told"):
        ranks.on_main(fail)
