"""What a container is granted of cores and memory, with the files of real and of odd systems."""

import os
from pathlib import Path

import pytest
from fastr.training.memory import available_on_host
from hypothesis import given
from hypothesis import strategies as st

from fastr.envs import cgroups, cores

V2, V1 = "0::/pods/mine\n", "5:cpuset:/\n3:cpu,cpuacct:/pods/mine\n0::/\n"
FIRST = "cpu.cfs_quota_us", "cpu.cfs_period_us"


@pytest.fixture
def system(tmp_path):
    """Write the files of a system; what it grants."""

    def made(membership: str, *, granted=cgroups.cores_granted, **files: str) -> int | None:
        (tmp_path / "membership").write_text(membership)
        for name, text in files.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return granted(tmp_path / "membership", tmp_path / "cgroup")

    return made


SYSTEMS = {
    "v2": (V2, {"pods/mine/cpu.max": "300000 100000\n"}, 3),
    "v2, no limit": (V2, {"pods/mine/cpu.max": "max 100000\n"}, None),
    "v2, the strictest above": (
        V2,
        {"pods/mine/cpu.max": "800000 100000\n", "pods/cpu.max": "250000 100000\n"},
        2,
    ),
    "v2, the host's path": (V2, {"cpu.max": "50000 100000\n"}, 0),
    "v2 beside v1": ("0::/\n", {"unified/cpu.max": "400000 100000\n"}, 4),
    "v1": (V1, {f"cpu,cpuacct/pods/mine/{FIRST[0]}": "600000\n"}, 6),
    "v1, no limit": (V1, {f"cpu,cpuacct/pods/mine/{FIRST[0]}": "-1\n"}, None),
    "v1, the host's path": (V1, {f"cpu,cpuacct/{FIRST[0]}": "200000\n"}, 2),
    "v1, plain name": (V1, {f"cpu/pods/{FIRST[0]}": "700000\n"}, 7),
    "another group's": (V2, {"pods/other/cpu.max": "100000 100000\n"}, None),
    "another controller's": ("5:cpuset:/mine\n", {"cpu.max": "100000 100000\n"}, None),
    "no files": (V2 + V1, {}, None),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_strictest_quota_above_the_process_counts(system, name):
    membership, files, expected = SYSTEMS[name]
    periods = {file.replace(*FIRST): "100000\n" for file in files if file.endswith(FIRST[0])}
    assert system(membership, **files, **periods) == expected


MEMORIES = {
    "v2": (
        V2,
        {
            "memory.max": "1000\n",
            "memory.current": "700\n",
            "memory.stat": "file 9\ninactive_file 50\n",
        },
        350,
    ),
    "v2, no limit": (V2, {"memory.max": "max\n", "memory.current": "700\n"}, None),
    "v2, over its limit": (V2, {"memory.max": "10\n", "memory.current": "12\n"}, 0),
    "v2, the strictest above": (
        V2,
        {
            "pods/memory.max": "90",
            "pods/memory.current": "40",
            "memory.max": "80",
            "memory.current": "5",
        },
        50,
    ),
    "v1": (
        "4:memory:/mine\n",
        {
            "memory/mine/memory.limit_in_bytes": "500",
            "memory/mine/memory.usage_in_bytes": "300",
            "memory/mine/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
        },
        300,
    ),
    "v1, another controller's": ("4:cpu:/\n", {"memory/memory.limit_in_bytes": "500"}, None),
    "odd": (V2, {"memory.max": "9 9", "memory.current": "", "memory.stat": " \n\nx\n"}, None),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_the_nearest_limit_of_memory_counts(system, name):
    membership, files, expected = MEMORIES[name]
    assert system(membership, granted=cgroups.memory_left, **files) == expected


def test_a_container_has_no_more_memory_than_it_is_granted(monkeypatch):
    monkeypatch.setattr("fastr.training.memory.memory_left", lambda: 2**62)
    assert available_on_host() < 2**62
    monkeypatch.setattr("fastr.training.memory.memory_left", lambda: 12345)
    assert available_on_host() == 12345


@given(st.text() | st.lists(st.text(":,/.cpu\n0", max_size=30)).map("\n".join))
def test_an_odd_membership_is_no_error(text):
    for group in cgroups.groups("cpu", text):
        folder = Path("/nowhere/at/all") / group.strip("/")
        assert cgroups.cores_of(folder) is cgroups.memory_of(folder) is None


@given(
    st.text() | st.tuples(st.integers() | st.just("max"), st.integers()).map("{0[0]} {0[1]}".format)
)
def test_a_quota_is_a_number_of_cores_or_none(text):
    assert (found := cgroups.granted(text)) is None or found >= 0


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_a_quota_is_rounded_down_to_whole_cores(micros, period):
    assert cgroups.granted(f"{micros} {period}\n") == micros // period


@pytest.mark.parametrize("content", [b"\xff\xfe", b"9" * 10_000, b"1 2 3", b""])
def test_odd_files_are_no_limit(tmp_path, system, content):
    system(V2)
    (tmp_path / "cgroup" / "pods").mkdir(parents=True)
    (tmp_path / "cgroup" / "pods" / "cpu.max").write_bytes(content)
    assert system(V2) is None


def test_a_directory_in_a_files_place_is_no_limit(tmp_path, system):
    (tmp_path / "cgroup" / "cpu.max").mkdir(parents=True)
    assert system(V2) is None
    assert cgroups.cores_granted(tmp_path / "none", tmp_path / "none") is None


@pytest.mark.parametrize(("share", "expected"), [(None, 64), (100, 64), (6, 6), (0, 1)])
def test_a_quota_bounds_the_cores(monkeypatch, share, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(cores, "cores_granted", lambda: share)
    assert cores.usable_cores() == expected
    assert cores.allowed_cores() == tuple(range(64))
