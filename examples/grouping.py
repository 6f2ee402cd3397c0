"""Grouping, the one operation that looks at more than a single item.

`group(window=3)` gives, for each number, the last three numbers of its key, it being the last. Here
the key is the parity, so odd and even numbers fill a bucket each. The tuples come out in the order
of the input, not bucket by bucket: everything in Emberflow has its place in one total order.

    $ python examples/grouping.py
    1 -> (1)
    2 -> (2)
    3 -> (1|3)
    4 -> (2|4)
    5 -> (1|3|5)
    6 -> (2|4|6)
    7 -> (3|5|7)
    8 -> (4|6|8)
"""

import emberflow as ef

NUMBERS = [1, 2, 3, 4, 5, 6, 7, 8]

flow = ef.Flow("grouping")
flow.front("numbers").key_by(lambda number: number % 2).group(window=3).sink("tuples")


def main() -> None:
    for numbers in ef.run(flow, numbers=NUMBERS)["tuples"]:
        print(f"{numbers[-1]} -> ({'|'.join(map(str, numbers))})")


if __name__ == "__main__":
    main()
