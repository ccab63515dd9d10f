"""Tests of the shards and the dense parameters of servers, without Paddle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from launcher.errors import SettingsError
from launcher.trainer import server_tables


def test_every_shard_is_assigned_once_for_any_number_of_servers() -> None:
    for servers in range(1, 70):
        own = [
            server_tables.shards_of_server(server_tables.choose_shard_count(servers), servers, server)
            for server in range(servers)
        ]
        assert [shard for each in own for shard in each] == list(
            range(server_tables.choose_shard_count(servers))
        )
        assert all(own), "a server without a shard reads beyond its files"
    assert {server_tables.choose_shard_count(servers) for servers in (1, 2, 3, 4, 6, 10, 30)} == {60}
    assert not server_tables.every_server_has_shards(60, 11)


def test_the_shards_of_an_elastic_run_suffice_for_all_its_numbers_of_servers() -> None:
    shards = server_tables.choose_shard_count(16, range(8, 17))
    assert all(server_tables.every_server_has_shards(shards, servers) for servers in range(8, 17))
    assert shards == 157
    assert server_tables.choose_shard_count(4, range(2, 11)) == 60


def test_usable_ports_nums_are_only_those_that_the_trainers_can_reach() -> None:
    assert server_tables.usable_ports_nums(60, 8) == [1]
    assert server_tables.usable_ports_nums(10, 1) == [1, 2, 3, 4, 5, 10]
    assert server_tables.usable_ports_nums(60, 61) == []


@pytest.mark.parametrize("total", [1, 2, 5, 20])
@pytest.mark.parametrize("saved_by", [1, 2, 3, 5])
@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_dense_parameters_of_any_number_of_servers_can_be_read_by_any_other_number(
    tmp_path: Path, total: int, saved_by: int, servers: int
) -> None:
    def parts(count: int) -> list[range]:
        each = total // count + 1
        return [range(total)[n * each : (n + 1) * each] for n in range(count)]

    folder, numbers = tmp_path / "pass-00000", np.arange(total, dtype=np.float32)
    (folder / "dense").mkdir(parents=True)
    once = {"Beta1Pow": np.float32([0.5])}
    for server, part in enumerate(parts(saved_by)):
        own = numbers[part.start : part.stop]
        np.savez(folder / server_tables.dense_file(server), Param=own, Moment1=own + 100, **once)
    names = ["Param", "Moment1", *once]
    found = [
        server_tables.read_dense(folder, names, total, saved_by, part) for part in parts(servers) if part
    ]
    assert np.concatenate([each["Param"] for each in found]).tolist() == numbers.tolist()
    assert np.concatenate([each["Moment1"] for each in found]).tolist() == (numbers + 100).tolist()
    assert all(each["Beta1Pow"].tolist() == [0.5] for each in found)
    for wrong in ((["Param"], total), (names, total + 30)):
        with pytest.raises(
            SettingsError, match=r"^training cannot resume from pass-00000: .*startFromScratch"
        ):
            server_tables.read_dense(folder, *wrong, saved_by, range(1))
