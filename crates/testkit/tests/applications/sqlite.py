"""Transfers amounts between accounts in an SQLite database. A test runs several of these processes.

sqlite.py make  BASE MODE          creates the database with the journal mode `delete` or `wal`
sqlite.py run   BASE NAME COUNT    makes COUNT transfers, each with an entry for NAME
sqlite.py die   BASE               begins a transaction whose changes reach the file, prints a line,
                                   and waits for its end
sqlite.py check BASE NAME:COUNT... checks that the database has exactly these transfers
"""

import random
import sqlite3
import sys

ACCOUNTS = 200
START = 1000


def opened(base):
    # If another process has locked the database, wait for up to 120 seconds.
    return sqlite3.connect(base, timeout=120, isolation_level=None)


def make(base, mode):
    db = opened(base)
    assert db.execute(f"pragma journal_mode = {mode}").fetchone() == (mode,)
    db.execute("create table account (id integer primary key, sum integer, filler text)")
    db.execute("create table entry (name text, number integer, moved integer)")
    db.execute("create unique index entries on entry (name, number)")
    with_filler = [(i, START, str(i) * 300) for i in range(ACCOUNTS)]
    db.execute("begin")
    db.executemany("insert into account values (?, ?, ?)", with_filler)
    db.execute("commit")


def run(base, name, count):
    db = opened(base)
    chance = random.Random(name)
    for number in range(int(count)):
        giver, taker = chance.sample(range(ACCOUNTS), 2)
        db.execute("begin immediate")
        had = db.execute("select sum from account where id = ?", (giver,)).fetchone()[0]
        moved = chance.randrange(10)
        # Compute the new sum here and not in SQL. So if an update of another process is lost, the
        # total changes.
        db.execute("update account set sum = ? where id = ?", (had - moved, giver))
        db.execute("update account set sum = sum + ? where id = ?", (moved, taker))
        db.execute("insert into entry values (?, ?, ?)", (name, number, moved))
        db.execute("commit")


def die(base):
    db = opened(base)
    db.execute("pragma cache_size = 5")
    db.execute("begin immediate")
    db.execute("update account set sum = 0, filler = filler || 'changed'")
    print("begun", flush=True)
    sys.stdin.read()


def check(base, *entries):
    db = opened(base)
    assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
    total, changed = db.execute(
        "select sum(sum), count(*) filter (where filler like '%changed') from account"
    ).fetchone()
    assert total == ACCOUNTS * START, f"the total is {total}"
    assert changed == 0, f"{changed} rows of a transaction that was never committed"
    found = db.execute("select name, count(*), max(number) from entry group by name").fetchall()
    wanted = [(name, int(count), int(count) - 1) for name, count in (it.split(":") for it in entries)]
    assert sorted(found) == sorted(wanted), f"{found}, not {wanted}"


{"make": make, "run": run, "die": die, "check": check}[sys.argv[1]](*sys.argv[2:])
