"""The bank in PostgreSQL: a table, a stored function, and pgbench, in a private cluster.

A transfer is one call of a function, which is one transaction: it locks its rows in the order of
their ids, so that there are no deadlocks, and refuses to leave a balance below zero. Statements are
prepared, and clients use a Unix socket. Of PostgreSQL's durability only ``synchronous_commit`` is
changed; it gets more memory than in the tests, so that all of it fits.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.adapters.postgres_server import PostgresServer, binaries
from transactions.flows import AMOUNT_MAX, OPENING

CLIENTS = 16
_SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB", "log_min_messages": "error"}
_TIMEOUT_SECONDS = 120

_TABLE = """
create table accounts (id int primary key, balance bigint not null) with (fillfactor = 50);
insert into accounts select id, {opening} from generate_series(1, {accounts}) id;
create function transfer(source int, target int, amount int) returns boolean
language plpgsql as $$
begin
  if target < source then
    perform 1 from accounts where id = target for update;
  end if;
  update accounts set balance = balance - amount where id = source and balance >= amount;
  if not found then
    return false;
  end if;
  update accounts set balance = balance + amount where id = target;
  return true;
end $$;
"""

_SCRIPT = """\\set source random(1, {accounts})
\\set target random(1, {accounts})
\\set amount random(1, {amount})
select transfer(:source, :target, :amount);
"""


@dataclass(frozen=True)
class Rate:
    """Transfers per second with all clients busy, and mean milliseconds at a share of that."""

    rate: float
    mean: float


class Bank:
    """The accounts, in a running server."""

    def __init__(self, server: PostgresServer, programs: Path, accounts: int, folder: Path) -> None:
        self._server = server
        self._pgbench = programs / "pgbench"
        self._accounts = accounts
        self._script = folder / "transfer.sql"
        self._script.write_text(_SCRIPT.format(accounts=accounts, amount=AMOUNT_MAX))
        with psycopg.connect(server.socket_dsn, autocommit=True) as connection:
            connection.execute(_TABLE.format(opening=OPENING, accounts=accounts))
            connection.execute("vacuum analyze accounts")

    def measured(self, transfers: int, *, synchronous: bool, share: float, seconds: int) -> Rate:
        each = max(1, transfers // CLIENTS)
        rate, _ = self._run(synchronous, "-t", str(each))
        _, mean = self._run(synchronous, "-T", str(seconds), "-R", f"{rate * share:.0f}")
        with psycopg.connect(self._server.socket_dsn, autocommit=True) as connection:
            found = connection.execute("select sum(balance) from accounts").fetchone()
            assert found is not None
            assert found[0] == self._accounts * OPENING, "money was made or lost"
            connection.execute("vacuum accounts")
        return Rate(rate, mean)

    def _run(self, synchronous: bool, *arguments: str) -> tuple[float, float]:
        """Transfers per second and mean milliseconds."""
        host, port = re.findall(r"host=(\S+) port=(\S+)", self._server.socket_dsn)[0]
        done = subprocess.run(
            [
                *(self._pgbench, "-h", host, "-p", port, "-U", "emberflow", "-n"),
                *("-M", "prepared", "-c", str(CLIENTS), "-j", "2"),
                *("-f", self._script, *arguments, "postgres"),
            ],
            env={
                **os.environ,
                "PGOPTIONS": f"-c synchronous_commit={'on' if synchronous else 'off'}",
            },
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        rate = re.search(r"tps = ([\d.]+)", done.stdout)
        mean = re.search(r"latency average = ([\d.]+) ms", done.stdout)
        if done.returncode or rate is None or mean is None:
            raise RuntimeError(f"pgbench failed:\n{done.stdout}{done.stderr}")
        return float(rate[1]), float(mean[1])


@contextmanager
def bank(accounts: int) -> Iterator[Bank | None]:
    """A context with the bank; None where PostgreSQL's programs are not installed."""
    programs = binaries()
    if programs is None or not (programs / "pgbench").exists():
        yield None
        return
    server = PostgresServer(programs, settings=_SETTINGS)
    try:
        server.start()
        with tempfile.TemporaryDirectory() as folder:
            yield Bank(server, programs, accounts, Path(folder))
    finally:
        server.stop()
