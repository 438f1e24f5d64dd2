"""Keyed numbers: the mixer by its formula, uniform, independent of order, and never changing."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np

from ala_encoder.keyed import keyed_bits, keyed_permutation, keyed_uniform

WORD = 2**64


def mixed(z: int) -> int:
    """One step of SplitMix64 (Steele, Lea and Flood 2014) in whole numbers."""
    z = (z + 0x9E3779B97F4A7C15) % WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
    return z ^ (z >> 31)


def bits(*keys: int) -> int:
    state = 0
    for key in keys:
        state = (mixed(state ^ key) + 0x9E3779B97F4A7C15) % WORD
    return mixed(state)


def test_the_mixer_is_the_published_one() -> None:
    """The first outputs of SplitMix64 from seed 0, as other implementations print them."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [mixed(i * 0x9E3779B97F4A7C15 % WORD) for i in range(3)] == published


def test_keyed_bits_equal_a_loop_over_whole_numbers() -> None:
    keys = [0, 1, 2, 1337, 2**32, 2**63 - 1, 2**63, WORD - 1]
    for first, second, third in itertools.product(keys, repeat=3):
        as_words = [np.uint64(key) for key in (first, second, third)]
        assert int(keyed_bits(*as_words)) == bits(first, second, third)
    assert int(keyed_bits(7)) == bits(7)


def test_keys_broadcast_and_each_value_stands_alone() -> None:
    rows, columns = np.array([5, 9, 2])[:, None], np.arange(4)[None, :]
    table = keyed_bits(3, rows, columns)
    assert table.shape == (3, 4)
    for i, row in enumerate([5, 9, 2]):
        for j in range(4):
            assert int(table[i, j]) == bits(3, row, j)


def test_keys_in_another_order_or_number_give_other_values() -> None:
    values = [int(keyed_bits(*keys)) for keys in itertools.permutations(range(4))]
    values += [int(keyed_bits(*range(n))) for n in range(1, 4)]
    values += [int(keyed_bits(*[0] * n)) for n in range(2, 8)]
    assert len(set(values)) == len(values)


def test_uniform_numbers_are_the_top_53_bits() -> None:
    for key in range(100):
        assert float(keyed_uniform(key)) == (bits(key) >> 11) / 2**53


def test_uniform_numbers_fill_the_interval_evenly() -> None:
    drawn = keyed_uniform(1, np.arange(200_000))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.histogram(drawn, bins=100, range=(0, 1))[0]
    chi_squared = ((counts - 2000) ** 2 / 2000).sum()
    assert 99 - 5 * 14.1 < chi_squared < 99 + 5 * 14.1
    neighbours = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(neighbours) < 0.01
    other_seed = keyed_uniform(2, np.arange(200_000))
    assert abs(np.corrcoef(drawn, other_seed)[0, 1]) < 0.01


def test_a_permutation_holds_every_number_once_and_depends_on_its_keys_alone() -> None:
    for size in (0, 1, 2, 7, 1000):
        order = keyed_permutation(size, 1, 2)
        assert sorted(order.tolist()) == list(range(size))
        assert order.tolist() == keyed_permutation(size, 1, 2).tolist()
        by_hand = sorted(range(size), key=lambda i: bits(1, 2, i))
        assert order.tolist() == by_hand
    orders = {tuple(keyed_permutation(50, *keys)) for keys in ((1, 2), (2, 1), (1, 3), (1,))}
    assert len(orders) == 4


def test_a_permutation_moves_every_place_to_any_place() -> None:
    """Each of 4 numbers comes first about equally often."""
    first = np.bincount([keyed_permutation(4, seed)[0] for seed in range(4000)], minlength=4)
    assert (abs(first - 1000) < 5 * 27.4).all()


def test_the_values_never_change() -> None:
    """Golden: an order or a mask of a run made last year must come out again."""
    digest = hashlib.sha256(keyed_bits(1337, np.arange(1000)).astype("<u8").tobytes())
    assert digest.hexdigest() == "a12d4e1f6a5c7e3efcae9a4a42970be5627cf71b2add630a40a856509710fbae"
    digest = hashlib.sha256(keyed_permutation(1000, 1337, 0, 3).astype("<i8").tobytes())
    assert digest.hexdigest() == "65a72ca30583c4e74be93b480433114e880eb4a1af943312ea8cf8f3781f2530"
