"""Tests of s3:// sources, with the S3 emulator moto on loopback."""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launcher.dataprep import sources as s3_module
from launcher.dataprep.parquet_rows import read_shard
from launcher.errors import DataError, UnfitError
from tests.launcher.dataprep.conftest import ALL, LINES, Pod, prepared_files, tarred, zipped
from tests.launcher.dataprep.test_folder_sources import FILES, READ

pytest.importorskip("moto.server", reason="moto is only in the environment of the tests")

PARTS = {
    "set/part-0.txt": b"a0\na1\na2\na3",
    "set/part-1.txt.gz": gzip.compress(b"b0\nb1\n", mtime=0),
    "set/sub/part-2.txt": b"c0\n",
    "set/_SUCCESS": b"",
    "set/": b"",
    "set/empty.txt": b"",
    "set/.part-0.txt.crc": b"crc\n",
    "set/_temporary/0/part-3.txt": b"unfinished\n",
    "setting/other.txt": b"x\n",
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3

    environ = {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-west-2"}
    for key, value in (
        environ | dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test")
    ).items():
        monkeypatch.setenv(key, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="data", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    for key, content in PARTS.items():
        client.put_object(Bucket="data", Key=key, Body=content)
    yield client
    for listed in client.list_objects_v2(Bucket="data").get("Contents", []):
        client.delete_object(Bucket="data", Key=listed["Key"])
    client.delete_bucket(Bucket="data")
    client.close()


def test_all_objects_below_a_prefix_are_split_evenly_in_the_order_of_their_keys(
    pod: Pod, bucket: Any
) -> None:
    manifest = pod.prepare(SOURCE="s3://data/set")
    assert sorted(pod.train()) == [b"a0", b"a1", b"a2", b"a3", b"b0", b"b1", b"c0"]
    assert sorted(len(shard) for shard in pod.shards()) == [2, 2, 3]
    keys = ("set/part-0.txt", "set/part-1.txt.gz", "set/sub/part-2.txt")
    together = b"".join(PARTS[key] for key in keys)
    assert manifest["sha256"] == hashlib.sha256(together).hexdigest()
    assert manifest["source"] == "s3://data/set"
    numbers = [[b"a0", b"a1", b"a2", b"a3", b"b0", b"b1", b"c0"].index(line) for line in pod.lines(0)]
    assert numbers == sorted(numbers)


def test_objects_of_several_listing_pages_are_all_read(
    pod: Pod, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_module.s3, "PAGE", 4)
    for number in range(11):
        bucket.put_object(Bucket="data", Key=f"many/{number:04d}.txt", Body=b"%d\n" % number)
    assert pod.prepare(SOURCE="s3://data/many/")["lines"] == 11
    assert sorted(map(int, pod.train())) == list(range(11))


def test_csv_objects_need_the_same_header(pod: Pod, bucket: Any) -> None:
    bucket.put_object(Bucket="data", Key="csv/1.csv", Body=b"a,b\r\n1,2\r\n3,4\r\n")
    bucket.put_object(Bucket="data", Key="csv/2.csv.gz", Body=gzip.compress(b"a,b\n5,6\n"))
    pod.prepare(SOURCE="s3://data/csv", FORMAT="csv")
    assert sorted(pod.train()) == [b"1\t2", b"3\t4", b"5\t6"]
    bucket.put_object(Bucket="data", Key="csv/3.csv", Body=b"b,c,a\n7,9,8\n")
    pod.environ["data_digest"] = "other"
    with pytest.raises(DataError, match=r"3\.csv, line 1: the header is \['b', 'c', 'a'\], but \['a', 'b'\]"):
        pod.prepare(SOURCE="s3://data/csv", FORMAT="csv")
    pod.prepare(SOURCE="s3://data/csv", FORMAT="csv", COLUMNS=["b", "a"])
    assert sorted(pod.train()) == [b"2\t1", b"4\t3", b"6\t5", b"7\t8"]


def breaking(
    monkeypatch: pytest.MonkeyPatch, *lengths: int, then: Callable[[], Any] = lambda: None
) -> list[int]:
    """Make S3's n-th answer end after `lengths[n]` bytes and call `then`; later answers are complete."""
    breaks, broken = iter(lengths), []
    original = s3_module.RemoteBody

    def breaking_body(read: Callable[[int], bytes], *rest: Any) -> Any:
        left = next(breaks, 1 << 30)

        def read_or_break(size: int) -> bytes:
            nonlocal left
            if not left:
                broken.append(1)
                then()
                raise OSError("pulled")
            data = read(min(size, left))
            left -= len(data)
            return data

        return original(read_or_break, *rest)

    monkeypatch.setattr(s3_module, "RemoteBody", breaking_body)
    return broken


def test_a_broken_download_is_resumed_at_its_byte(
    pod: Pod, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"".join(b"%d\n" % n for n in range(50_000))
    bucket.put_object(Bucket="data", Key="big/1.txt", Body=content)
    broken = breaking(monkeypatch, 5000, 100_000, 0)
    assert pod.prepare(SOURCE="s3://data/big")["sha256"] == hashlib.sha256(content).hexdigest()
    assert sorted(map(int, pod.train())) == list(range(50_000))
    assert len(broken) == 3


def test_a_pod_without_credentials_exits_for_a_replacement_and_does_not_fail_the_job(
    pod: Pod, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(key)
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)  # it remembers the keys
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(UnfitError, match=r"(?s)credentials.*service account") as caught:
        pod.prepare(SOURCE="s3://data/set")
    assert caught.value.exit_code == 71


MEMBERS = {"pkg/data/in.txt": LINES, "pkg/items.txt": b"1 item\n", "pkg/other.txt": b"never read\xff\n"}
ARCHIVES = {"zip": zipped(MEMBERS), "tar.gz": tarred(MEMBERS)}


@pytest.fixture(params=sorted(ARCHIVES))
def archive(request: pytest.FixtureRequest, bucket: Any) -> dict[str, Any]:
    """Upload an archive next to unrelated objects; return the data values to read it, and its content."""
    key = f"sources/set.{request.param}"
    content = ARCHIVES[request.param]
    for other, body in ((key, content), (f"{key}.txt", b"x\n"), (f"{key}/a.txt", b"y\n")):
        bucket.put_object(Bucket="data", Key=other, Body=body)
    values = {"SOURCE": f"s3://data/{key}", "MEMBER": "pkg/data/in.txt", "TABLES": ["pkg/items.txt"]}
    return {"values": values, "content": content, "key": key}


def test_member_and_tables_are_read_from_exactly_the_given_object(pod: Pod, archive: dict[str, Any]) -> None:
    sha256 = hashlib.sha256(archive["content"]).hexdigest()
    manifest = pod.prepare(**archive["values"], SHA256=sha256)
    assert sorted(pod.train()) == ALL
    assert (manifest["sha256"], manifest["member"]) == (sha256, "pkg/data/in.txt")
    assert manifest["source"] == f"s3://data/{archive['key']}"
    assert (pod.job / "tables" / "items.txt").read_bytes() == b"1 item\n"
    assert pod.leftovers() == []


def test_an_archive_that_is_replaced_while_it_is_read_is_rejected_and_nothing_is_published(
    pod: Pod, bucket: Any, archive: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced() -> None:
        bucket.put_object(Bucket="data", Key=archive["key"], Body=archive["content"] + b"\0")

    breaking(monkeypatch, 700, then=replaced)
    with pytest.raises(DataError, match=r"PreconditionFailed.*replaced while"):
        pod.prepare(**archive["values"])
    assert not (pod.job / "manifest.json").exists()
    assert pod.leftovers() == []


ONE, BAD_GZ = {"bad/1.txt": b"1\n2\n3\n"}, gzip.compress(b"x\ny\0\n", mtime=0)
MISSING = "the object does not exist"
MEMBER = {"MEMBER": "in.txt"}


@pytest.mark.parametrize(
    ("source", "objects", "values", "message"),
    [
        ("bad", ONE | {"bad/2.txt": b"x\ny\xff\n"}, {}, "s3://data/bad/2.txt, row 2, column 2: the byte 0xff"),
        ("bad", ONE | {"bad/2.txt.gz": BAD_GZ}, {}, "s3://data/bad/2.txt.gz, row 2, column 2: a NUL"),
        ("bad", ONE | {"bad/2.gz": b"\x1f\x8b nothing"}, {}, "s3://data/bad/2.gz is damaged"),
        ("se", {}, {}, r"s3://data/se has no file to read; it has nothing.*Fix"),
        ("set", {}, {"SHA256": hashlib.sha256(PARTS["set/part-0.txt"]).hexdigest()}, "data.sha256 is .* has "),
        ("set", {}, {"TEST_SOURCE": "s3://absent/x"}, r"Fix: correct the bucket in data\.testSource\."),
        ("set/part-9.zip", {}, MEMBER, f"s3://data/set/part-9.zip: {MISSING}; the same prefix has .*set/part-0.txt"),
        ("none/part-9.zip", {}, MEMBER, f"s3://data/none/part-9.zip: {MISSING}; the same prefix has nothing"),
        ("none.zip", {}, MEMBER, f"s3://data/none.zip: {MISSING}; the same prefix has set/"),
        ("set/part", {}, MEMBER, f"s3://data/set/part: {MISSING}"),
        ("set", {}, MEMBER, "s3://data/set is a prefix, not an object; below it are set/.*leave data.member empty"),
        ("_own/.days", {"_own/.days/x/all.parquet": b"PAR1"}, {},
         r"s3://data/_own/\.days: x/all\.parquet is no text file.*Fix: convert"),
    ],
)  # fmt: skip
def test_an_object_that_cannot_be_used_is_reported_with_its_key(
    pod: Pod, bucket: Any, *, source: str, objects: dict[str, bytes], values: dict[str, str], message: str
) -> None:
    for key, content in objects.items():
        bucket.put_object(Bucket="data", Key=key, Body=content)
    with pytest.raises(DataError, match=message):
        pod.prepare(SOURCE=f"s3://data/{source}", **values)


@pytest.mark.parametrize(
    ("environ", "source", "message"),
    [
        ({}, "absent/x", r"s3://absent/x: S3 answered NoSuchBucket \(404\)\. Fix: correct the bucket"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "data/set", "after 5 attempts in a row: no connection"),
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "data/set", r"minio:9000.*AWS_ENDPOINT_URL"),
    ],
    ids=["no bucket", "no server", "no address"],
)
def test_an_unusable_bucket_or_endpoint_is_reported(
    pod: Pod,
    bucket: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    environ: dict[str, str],
    source: str,
    message: str,
) -> None:
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(DataError, match=message):
        pod.prepare(SOURCE=f"s3://{source}")


@pytest.mark.parametrize(
    ("key", "content", "values", "count"),
    [
        ("set/part-0.txt", PARTS["set/part-0.txt"], {}, 4),
        ("a?b#c.zip", zipped({"in": LINES}), {"MEMBER": "in"}, 1000),  # a URL may not have such characters
        ("_own/.rows.tmp", b"1\n2\n3\n", {}, 3),
    ],
)
def test_an_object_that_data_source_names_is_read_whatever_its_name_is(
    pod: Pod, bucket: Any, *, key: str, content: bytes, values: dict[str, str], count: int
) -> None:
    bucket.put_object(Bucket="data", Key=key, Body=content)
    sha256 = hashlib.sha256(content).hexdigest()
    assert pod.prepare(SOURCE=f"s3://data/{key}", SHA256=sha256, **values)["lines"] == count


def test_the_names_that_count_are_those_of_local_folders(pod: Pod, bucket: Any) -> None:
    """The rule is one for both; test_folder_sources.py tests it on local folders."""
    for path, content in FILES.items():
        bucket.put_object(Bucket="data", Key=f"_own/.days/{path}", Body=content)
    assert pod.prepare(SOURCE="s3://data/_own/.days")["lines"] == len(READ)
    assert sorted(pod.train()) == sorted(READ)


@pytest.mark.parametrize("source", ["set", "set/", "set/sub/part-2.txt"])
def test_the_objects_below_a_prefix_are_files(bucket: Any, pod: Pod, source: str) -> None:
    keys = (
        "part-0.txt",
        "part-1.txt.gz",
        "sub/part-2.txt",
        "_SUCCESS",
        "empty.txt",
        "_temporary/0/part-3.txt",
    )
    expected = {key: PARTS[f"set/{key}"] for key in keys}
    pod.prepare(SOURCE=f"s3://data/{source}", FORMAT="files", part_bytes=8)
    assert prepared_files(pod) == (expected if "sub" not in source else {"part-2.txt": b"c0\n"})


def test_the_object_that_data_source_names_is_the_data_although_it_is_a_prefix_too(
    bucket: Any, pod: Pod
) -> None:
    bucket.put_object(Bucket="data", Key="set", Body=LINES)
    pod.prepare(SOURCE="s3://data/set", FORMAT="files")
    assert prepared_files(pod) == {"set": LINES}


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_in_a_bucket_is_unpacked(
    bucket: Any, pod: Pod, pack: Callable[[dict[str, bytes]], bytes]
) -> None:
    bucket.put_object(Bucket="data", Key="set/a.bin", Body=pack({"a/x": LINES, "b": b""}))
    pod.prepare(SOURCE="s3://data/set/a.bin", FORMAT="files")
    assert prepared_files(pod) == {"a/x": LINES, "b": b""}


def test_parquet_files_in_a_bucket_are_read(bucket: Any, pod: Pod) -> None:
    for number in range(3):
        file = io.BytesIO()
        pq.write_table(pa.table({"x": list(range(number * 50, number * 50 + 50))}), file, row_group_size=20)
        bucket.put_object(Bucket="data", Key=f"tables/day={number}/part.parquet", Body=file.getvalue())
    manifest = pod.prepare(SOURCE="s3://data/tables", format="parquet", part_bytes=100)
    assert [shard["parts"] for shard in manifest["shards"]] == [3, 3, 3]
    shards = [pod.job / str(shard) / "data" for shard in range(3)]
    files = [path for shard in shards for path in sorted(shard.glob("train-*"))]
    found = [value for path in files for rows in read_shard(path) for value in rows["x"].to_pylist()]
    assert sorted(found) == list(range(150))
