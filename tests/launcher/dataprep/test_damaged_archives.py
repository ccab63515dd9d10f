"""Damaged archives against the real tools: what these reject is an error, or has the same rows.

The tools are part of every Debian; a test without its tool is skipped with the reason.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import random
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.dataprep import archives, text_lines
from launcher.errors import DataError, StorageFailedError
from tests.launcher.dataprep.conftest import LINES, Pod, tarred, zipped

STREAMS = [b"".join(b"%d\tstream %d of a file\n" % (n, k) for n in range(400)) for k in range(3)]
ROWS = b"".join(STREAMS)
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lambda content: lzma.compress(content, preset=0),  # the default is ten times slower
}
SUFFIX = {"gzip": "gz", "bzip2": "bz2", "xz": "xz"}
MUTANTS = 250
"""Damaged files of each format; a failed one is shown with its number, which is its seed."""


def require(tool: str) -> None:
    if not shutil.which(tool):
        pytest.skip(f"{tool} is not installed, so that there is nothing to compare with")


def output(argv: list[str], content: bytes = b"") -> tuple[int, bytes]:
    """Return exit code and stdout of a tool."""
    done = subprocess.run(argv, input=content, capture_output=True, check=False)
    return done.returncode, done.stdout


def rows_of(files: Iterator[archives.SourceFile]) -> bytes | None:
    """Return the rows of the text as the data Job reads them; None if that is an error for the user."""
    try:
        return b"".join(
            block for file in files for block in text_lines.line_blocks(file.stream, file.name, "utf-8")
        )
    except DataError:
        return None


def decompressed(content: bytes, name: str) -> bytes | None:
    def read() -> Iterator[archives.SourceFile]:
        yield archives.decompress(io.BufferedReader(io.BytesIO(content)), name, len(content))

    return rows_of(read())


def damaged(content: bytes, seed: int) -> bytes:
    """Return `content` with one or two faults that disks, transfers and programs cause."""
    dice, data = random.Random(seed), bytearray(content)  # noqa: S311
    for _ in range(dice.choice((1, 1, 2))):
        at = dice.randrange(len(data))
        if dice.random() < 0.3:  # near the start of one of the streams, or near the end
            at = min(
                len(data) - 1, dice.choice((0, len(data) // 3, 2 * len(data) // 3, len(data) - 30)) + at % 30
            )
        match dice.randrange(7):
            case 0:
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                del data[at:]
            case 2:
                del data[at : at + dice.randrange(1, 20)]
            case 3:
                data[at:at] = dice.randbytes(dice.randrange(1, 20))
            case 4:
                data += dice.choice((b"\0", dice.randbytes(1), content[:7])) * dice.randrange(1, 9)
            case 5:
                data[at : at + 20] = bytes(20)
            case _:
                data[at:at] = bytes(dice.randrange(1, 9))
        data = data or bytearray(b"\0")
    return bytes(data)


@pytest.mark.parametrize("tool", COMPRESS)
def test_a_damaged_compressed_file_is_an_error_or_has_the_rows_of_the_real_tool(tool: str) -> None:
    require(tool)
    pack = COMPRESS[tool]
    content = b"".join(map(pack, STREAMS))
    rejected = 0
    for seed in range(MUTANTS):
        bad = damaged(content, seed)
        code, wanted = output([tool, "-dc"], bad)
        found = decompressed(bad, f"x.{SUFFIX[tool]}")
        rejected += found is None
        assert found in (None, wanted if code == 0 else ROWS), f"seed {seed}, {tool} exits with {code}"
    assert rejected > MUTANTS / 2


@pytest.mark.parametrize("tool", COMPRESS)
@pytest.mark.parametrize("following", [b"", STREAMS[1]], ids=["at the end", "between two streams"])
@pytest.mark.parametrize(
    "tail", [*map(bytes, (0, 1, 3, 4, 6, 8, 512)), b"garbage", b"\0\0\0\0garbage", b"B", b"\x1f"]
)
def test_padding_is_accepted_where_the_real_tool_accepts_it_and_other_bytes_are_rejected(
    tool: str, tail: bytes, following: bytes
) -> None:
    require(tool)
    content = COMPRESS[tool](STREAMS[0]) + tail + (COMPRESS[tool](following) if following else b"")
    code, wanted = output([tool, "-dc"], content)
    whole = STREAMS[0] + following
    is_accepted = not tail.strip(b"\0") and code == 0 and wanted == whole
    assert decompressed(content, f"x.{SUFFIX[tool]}") == (whole if is_accepted else None)


@pytest.mark.parametrize("tool", COMPRESS)
def test_many_streams_of_any_size_are_read_to_the_end(tool: str) -> None:
    big = b"".join(
        b"%d\t%d\n" % (n, n * n) for n in range(200_000)
    )  # more than one block of input and output
    parts = [b"", b"a\n", big, b"", b"b\n" * 900_000, b"end"]
    found = decompressed(b"".join(map(COMPRESS[tool], parts)), f"x.{SUFFIX[tool]}")
    assert found == b"".join(parts) + b"\n"


def later_stream_damaged(tool: str) -> bytes:
    """Return three streams, of which the second one is damaged at its start."""
    second = bytearray(COMPRESS[tool](STREAMS[1]))
    second[2] ^= 0xFF
    return COMPRESS[tool](STREAMS[0]) + second + COMPRESS[tool](STREAMS[2])


TWICE = [("in.txt", b"a\n"), ("in.txt", b"b\n")]
INNER = {"in.zip": zipped({"in.txt": LINES})}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("name", "content", "member", "message"),
    [
        ("in.gz", LINES, "", "in.gz is no gz file.*Fix"),
        ("in.txt.xz", LINES, "", "in.txt.xz is no xz file.*Fix"),
        ("in.bz2", b"BZhello\n" * 9, "", "in.bz2 is no bz2 file.*Fix"),
        ("in.gz", gzip.compress(gzip.compress(LINES)), "", "in.gz is compressed twice.*Fix: decompress"),
        ("in.gz", gzip.compress(zipped({"in": LINES})), "", "in.gz is a zip file"),
        ("in", zipped(INNER), "in.zip", r"in!in\.zip is a zip file inside an archive.*Fix: unpack"),
        ("in", tarred(INNER), "in.zip", r"in!in\.zip is a zip file inside an archive.*Fix: unpack"),
        # Tools differ in which one counts: `tar -x` keeps the last one, a stream has the first one.
        ("in", lambda: zipped(TWICE), "in.txt", r"in has 'in\.txt' more than once.*Fix"),
        ("in", tarred(TWICE), "in.txt", r"in has 'in\.txt' more than once.*Fix"),
        # Python's BZ2File and LZMAFile end silently before such a stream.
        *((f"in.{SUFFIX[tool]}", later_stream_damaged(tool), "", "in.* is damaged or incomplete.*Fix: replace it")
          for tool in COMPRESS),
    ],
)  # fmt: skip
def test_a_file_that_is_not_what_it_should_be_is_an_error_with_a_fix(
    pod: Pod, name: str, content: bytes | Callable[[], bytes], member: str, message: str
) -> None:
    pod.source(content() if callable(content) else content, name)
    with pytest.raises(DataError, match=f"(?s){message}"):
        pod.prepare(MEMBER=member)
    assert not (pod.job / "manifest.json").exists()


def test_text_that_starts_like_a_bzip2_file_is_text(pod: Pod) -> None:
    pod.source(b"BZh9 is a name\n" + LINES)
    assert pod.prepare()["lines"] == 1001


def zip_rows(path: Path, content: bytes, member: str = "d/in.txt") -> bytes | None:
    path.write_bytes(content)
    return rows_of(archives.zip_files(path, path.name, member, ()))


def zip_variants() -> dict[str, bytes]:
    """Return zip files of different kinds with the rows as d/in.txt."""
    kinds = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED, "bzip2": zipfile.ZIP_BZIP2}
    members = {"a.txt": b"other\n" * 50, "d/in.txt": ROWS}
    found = {kind: zipped(members, how) for kind, how in kinds.items()}
    file = io.BytesIO()
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("d/in.txt", "w", force_zip64=True) as one,
    ):
        one.write(ROWS)
    found["zip64"] = file.getvalue()

    class Pipe(io.RawIOBase):  # a file without seek: zipfile then writes data descriptors
        def writable(self) -> bool:
            return True

        def write(self, data: object, /) -> int:
            return out.write(bytes(data))  # type: ignore[call-overload]

    out = io.BytesIO()
    with zipfile.ZipFile(Pipe(), "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[arg-type]
        archive.writestr("d/in.txt", ROWS)
    found["descriptors"] = out.getvalue()
    return found


@pytest.mark.parametrize("kind", zip_variants())
def test_a_damaged_zip_file_is_an_error_or_has_the_rows_of_unzip(tmp_path: Path, kind: str) -> None:
    require("unzip")
    content = zip_variants()[kind]
    path = tmp_path / "in.zip"
    assert zip_rows(path, content) == ROWS
    rejected = 0
    for seed in range(MUTANTS // 3):
        found = zip_rows(path, damaged(content, seed))
        code, wanted = output(["unzip", "-p", "-P", "none", str(path), "d/in.txt"])
        rejected += found is None
        assert found in ((None, wanted) if code == 0 else (None, ROWS)), (
            f"seed {seed}, unzip exits with {code}"
        )
    assert rejected > MUTANTS / 20


def test_a_temporary_error_of_the_storage_is_no_damage_and_no_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the data Job reported a bug of the launcher, and the run ended."""
    path = tmp_path / "in.zip"
    path.write_bytes(zip_variants()["stored"])

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(zipfile.ZipExtFile, "read", fail)
    with pytest.raises(StorageFailedError, match=r"failed at file://in\.zip!d/in\.txt: Input/output error"):
        next(archives.zip_files(path, "file://in.zip", "d/in.txt", ()))


def tar_variants() -> dict[str, bytes]:
    found = {f"tar of {kind}": tarred({"a.txt": b"x\n" * 99, "in.txt": ROWS, "z.txt": b"y\n"}, f"w:{kind}")
             for kind in ("", "gz", "bz2", "xz")}  # fmt: skip
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        members = {"long/" * 40 + "a.txt": ROWS, "in.txt": ROWS}
        found[f"format {form}"] = tarred(members, "w:", form, comment="é" * 9)
    return found


def tar_rows(content: bytes, member: str = "in.txt") -> bytes | None:
    return rows_of(archives.tar_files(io.BufferedReader(io.BytesIO(content)), "in.tar", member, ()))


@pytest.mark.parametrize("kind", tar_variants())
def test_a_damaged_tar_archive_is_an_error_or_has_the_rows_of_tar(tmp_path: Path, kind: str) -> None:
    require("tar")
    content = tar_variants()[kind]
    assert tar_rows(content) == ROWS
    path = tmp_path / "in.tar"
    rejected = 0
    for seed in range(MUTANTS // 3):
        bad = damaged(content, seed)
        path.write_bytes(bad)
        found = tar_rows(bad)
        code, wanted = output(["tar", "--occurrence=1", "-xOf", str(path), "in.txt"])
        accepted, _ = output(["tar", "-tf", str(path)])
        rejected += found is None
        if code == accepted == 0:
            assert found in (None, wanted), f"seed {seed}"
        else:
            assert found is None, f"seed {seed}, tar -t exits with {accepted}"
    assert rejected > MUTANTS / 30


def test_the_checksum_of_a_compressed_tar_archive_is_verified() -> None:
    """Regression: tarfile's streams check neither gzip's CRC nor what follows the archive's end."""
    content = bytearray(tarred({"in.txt": ROWS}))
    content[-8] ^= 1
    assert tar_rows(bytes(content)) is None
    assert tar_rows(tarred({"in.txt": ROWS}) + b"garbage") is None
    whole = tarred({"in.txt": ROWS}, "w")
    assert tar_rows(gzip.compress(whole[:5000]) + gzip.compress(whole[5000:])) == ROWS


@pytest.mark.parametrize("cut", [512, 700, 1024, 1536 + len(ROWS) // 2])
def test_a_tar_archive_that_is_cut_behind_its_member_is_rejected_as_by_tar(cut: int) -> None:
    require("tar")
    content = tarred({"in.txt": b"a\nb\n", "more.txt": ROWS}, "w")[: 1024 + cut]
    code, _ = output(["tar", "-t"], content)
    assert (tar_rows(content) is None) == (code != 0)


def test_an_encrypted_zip_file_is_rejected(tmp_path: Path) -> None:
    require("zip")
    (tmp_path / "in.txt").write_bytes(ROWS)
    subprocess.run(["zip", "-q", "-P", "secret", "in.zip", "in.txt"], cwd=tmp_path, check=True)
    with pytest.raises(DataError, match="encrypted"):
        list(archives.zip_files(tmp_path / "in.zip", "in.zip", "in.txt", ()))
