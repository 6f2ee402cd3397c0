"""A streaming ledger: each transfer is four conditional updates, of accounts and of book entries.

The classic example of transactions on streams: there are *accounts* with balances and *books* that
count what every client has done. A transfer updates two accounts and two book entries, and is booked
only if the source account has the money and its book the assets (`check=`, of one value each), and if
afterwards each asset is covered by five euro of its holder (`require`, over all four values, on
whatever workers they are). Deposits use the same two states in a transaction of their own.

    $ python examples/ledger.py
    booked
      100 euro and 10 assets for ada
      5 euro and 0 assets for bob
      40 euro and 4 assets from ada to bob
      45 euro and 4 assets from bob to eve
    refused
      70 euro and 1 assets from ada to eve
        has_money: 60 euro would become -10
      0 euro and 1 assets from bob to ada
        has_assets: 0 assets would become -1
      1 euro and 2 assets from ada to bob
        covered: bob would have 1 euro and 2 assets
    at the end
      ada: 60 euro, 6 assets
      bob: 0 euro, 0 assets
      eve: 45 euro, 4 assets
"""

from typing import NamedTuple

import emberflow as ef


class Deposit(NamedTuple):
    client: str
    euro: int
    assets: int

    def __str__(self) -> str:
        return f"{self.euro} euro and {self.assets} assets for {self.client}"


class Transfer(NamedTuple):
    source: str
    target: str
    euro: int
    assets: int

    def __str__(self) -> str:
        what = f"{self.euro} euro and {self.assets} assets"
        return f"{what} from {self.source} to {self.target}"


DEPOSITS = [ef.At(0, Deposit("ada", 100, 10)), ef.At(1, Deposit("bob", 5, 0))]
TRANSFERS = [
    ef.At(2, Transfer("ada", "bob", 40, 4)),
    ef.At(3, Transfer("ada", "eve", 70, 1)),
    ef.At(4, Transfer("bob", "eve", 45, 4)),
    ef.At(5, Transfer("bob", "ada", 0, 1)),
    ef.At(6, Transfer("ada", "bob", 1, 2)),
]


def has_money(euro: int) -> bool:
    return euro >= 0


def has_assets(assets: int) -> bool:
    return assets >= 0


def covered(values: ef.Values) -> bool:
    """Whether each client that was touched has five euro an asset.

    >>> covered(ef.Values({("accounts", "ada"): 9, ("books", "ada"): 2}))
    False
    """
    euro, assets = values.of(accounts), values.of(books)
    return all(euro.get(client, 0) >= 5 * count for client, count in assets.items())


flow = ef.Flow("ledger")
accounts = flow.state("accounts", default=0)
books = flow.state("books", default=0)

with flow.front("deposits").transaction(name="deposit") as deposit:
    client = deposit.key_by(lambda d: d.client)
    client.update(accounts, lambda euro, d: euro + d.euro)
    client.update(books, lambda assets, d: assets + d.assets)

with flow.front("transfers").transaction(name="transfer") as transfer:
    source = transfer.key_by(lambda t: t.source)
    target = transfer.key_by(lambda t: t.target)
    source.update(accounts, lambda euro, t: euro - t.euro, check=has_money)
    target.update(accounts, lambda euro, t: euro + t.euro)
    source.update(books, lambda assets, t: assets - t.assets, check=has_assets)
    target.update(books, lambda assets, t: assets + t.assets)
    transfer.require(covered)

with ef.merge(deposit.committed, transfer.committed).transaction(name="look") as look:
    # A transaction may only read. It sees what the one before it left.
    named = look.flat_map(lambda b: [b.client] if isinstance(b, Deposit) else [b.source, b.target])
    money = named.key_by(lambda name: name).read(accounts)
    both = money.key_by(lambda pair: pair[0]).read(books)
    seen = look.output(both.map(lambda pair: (*pair[0], pair[1])))

ef.merge(deposit.committed, transfer.committed).sink("booked")
transfer.rejected.sink("refused")
seen.sink("balances")


def main() -> None:
    outputs = ef.run(flow, deposits=DEPOSITS, transfers=TRANSFERS)
    print("booked")
    for booking in outputs["booked"]:
        print(f"  {booking}")
    print("refused")
    for element, check, values in outputs["refused"]:
        ((state, _), after), *others = values.items()
        unit, moved = ("euro", element.euro) if state == "accounts" else ("assets", element.assets)
        why = f"{after + moved} {unit} would become {after}"
        if others:
            left = f"{values['accounts', element.target]} euro"
            why = f"{element.target} would have {left} and {values['books', element.target]} assets"
        print(f"  {element}\n    {check}: {why}")
    print("at the end")
    last = {name: (euro, assets) for name, euro, assets in outputs["balances"]}
    for name, (euro, assets) in sorted(last.items()):
        print(f"  {name}: {euro} euro, {assets} assets")


if __name__ == "__main__":
    main()
