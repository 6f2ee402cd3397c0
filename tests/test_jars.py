"""Jars that tests run are pinned by their hashes."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
LISTS = sorted(SCRIPTS.glob("*/*.sha256"))
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


class Checkout:
    """A checkout whose lists name one jar each, and a repository that has these jars."""

    def __init__(self, folder: Path, kind: str = "kafka", *names: str) -> None:
        self.folder = folder
        self.repository = folder / "repository"
        self._script = f"ensure-{kind}"
        (folder / "scripts" / kind).mkdir(parents=True)
        for script in (self._script, "ensure-jars"):
            shutil.copy(SCRIPTS / script, folder / "scripts")
        for name in names or ("broker", "spark"):
            jar = self.jar(name)
            jar.parent.mkdir(parents=True)
            jar.write_bytes(name.encode())
            pinned = f"{hashlib.sha256(name.encode()).hexdigest()}  org/{name}/{name}-1.jar\n"
            (folder / "scripts" / kind / f"{name}.sha256").write_text(pinned)

    def jar(self, name: str) -> Path:
        return self.repository / "org" / name / f"{name}-1.jar"

    def fetched(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "build").rglob("*.jar"))

    def ensure(self, *, by_maven: bool = False) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "HOME": str(self.folder),
            "MAVEN_REPOSITORY": "" if by_maven else f"file://{self.repository}",
        }
        return subprocess.run(
            [self.folder / "scripts" / self._script],
            capture_output=True,
            check=False,
            encoding="utf-8",
            env=environment,
            timeout=60,
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_jars_with_the_right_hash_are_fetched_once(checkout: Checkout) -> None:
    assert checkout.ensure().returncode == 0
    assert checkout.fetched() == ["broker-1.jar", "spark-1.jar"]
    shutil.rmtree(checkout.repository)
    again = checkout.ensure()
    assert (again.returncode, again.stderr) == (0, "")


def test_a_jar_with_another_hash_is_an_error_and_is_not_kept(checkout: Checkout) -> None:
    checkout.jar("spark").write_bytes(b"forged")
    found = checkout.ensure()
    assert found.returncode == 1
    assert "spark-1.jar does not have the SHA-256" in found.stderr
    assert checkout.fetched() == ["broker-1.jar"]


def test_a_jar_that_maven_has_is_checked_too(checkout: Checkout) -> None:
    shutil.copytree(checkout.repository, checkout.folder / ".m2" / "repository")
    (checkout.folder / ".m2/repository/org/broker/broker-1.jar").write_bytes(b"forged")
    assert checkout.ensure().returncode == 0
    assert (checkout.folder / "build/kafka/broker/broker-1.jar").read_bytes() == b"broker"


def test_without_another_repository_a_forged_jar_of_maven_is_an_error(checkout: Checkout) -> None:
    shutil.copytree(checkout.repository, checkout.folder / ".m2" / "repository")
    assert checkout.ensure(by_maven=True).returncode == 0
    shutil.rmtree(checkout.folder / "build")
    (checkout.folder / ".m2/repository/org/spark/spark-1.jar").write_bytes(b"forged")
    found = checkout.ensure(by_maven=True)
    assert found.returncode == 1
    assert "spark-1.jar does not have the SHA-256" in found.stderr
    assert checkout.fetched() == ["broker-1.jar"]


def test_what_cannot_be_fetched_is_told(checkout: Checkout) -> None:
    checkout.jar("broker").unlink()
    found = checkout.ensure()
    assert found.returncode == 0
    assert "the tests of Kafka are skipped" in found.stderr


def test_the_jar_of_an_s3_server_is_checked_as_well(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "s3", "server")
    assert checkout.ensure().returncode == 0
    assert checkout.fetched() == ["server-1.jar"]
    assert checkout.ensure().stderr == ""
    shutil.rmtree(tmp_path / "build")
    checkout.jar("server").write_bytes(b"forged")
    found = checkout.ensure()
    assert found.returncode == 1
    assert "server-1.jar does not have the SHA-256" in found.stderr
    checkout.jar("server").unlink()
    found = checkout.ensure()
    assert found.returncode == 0
    assert "the tests of object stores are skipped" in found.stderr
    assert checkout.fetched() == []


def test_the_hadoop_of_the_tests_is_the_one_that_spark_brings() -> None:
    """Its cluster takes the other jars that it needs from PySpark."""
    pins = (SCRIPTS / "hadoop" / "minicluster.sha256").read_text()
    (version,) = re.findall(r"/hadoop-client-minicluster-(.*)\n", pins)
    assert (Path(pyspark.__file__).parent / "jars" / f"hadoop-client-runtime-{version}").exists()


@pytest.mark.parametrize("hash_is_right", [True, False])
def test_hadoop_is_fetched_once_and_a_forged_one_is_an_error(
    tmp_path: Path, hash_is_right: bool
) -> None:
    (tmp_path / "scripts" / "hadoop").mkdir(parents=True)
    for script in ("ensure-hadoop", "ensure-jars"):
        shutil.copy(SCRIPTS / script, tmp_path / "scripts")
    jar = tmp_path / "repository" / "org" / "hadoop-1.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"hadoop")
    pinned = hashlib.sha256(b"hadoop" if hash_is_right else b"another").hexdigest()
    pins = tmp_path / "scripts" / "hadoop" / "minicluster.sha256"
    pins.write_text(f"{pinned}  org/hadoop-1.jar\n")

    def ensure() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tmp_path / "scripts" / "ensure-hadoop"],
            capture_output=True,
            check=False,
            encoding="utf-8",
            env={
                **os.environ,
                "HOME": str(tmp_path),
                "MAVEN_REPOSITORY": f"file://{tmp_path / 'repository'}",
            },
            timeout=60,
        )

    found = ensure()
    kept = [path.name for path in (tmp_path / "build").rglob("*.jar")]
    if not hash_is_right:
        assert found.returncode == 1
        assert "org/hadoop-1.jar does not have the SHA-256" in found.stderr
        assert kept == []
        return
    assert (found.returncode, kept) == (0, ["hadoop-1.jar"])
    jar.unlink()
    again = ensure()
    assert (again.returncode, again.stderr) == (0, "")
    (tmp_path / "build" / "hadoop" / "minicluster" / "installed.sha256").unlink()
    gone = ensure()
    assert gone.returncode == 0
    assert "the tests of HDFS and YARN are skipped" in gone.stderr


@pytest.mark.parametrize("pins", LISTS, ids=lambda path: path.stem)
def test_every_jar_of_a_list_has_a_hash(pins: Path) -> None:
    lines = pins.read_text().splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[0-9a-f]{64}  [\w./-]+\.jar", line), line
