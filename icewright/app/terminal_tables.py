"""Tables on a terminal: the widths of their columns, and texts above or below rows where no column has room."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from icewright.app.output import STYLES, Column, console
from icewright.core import words

LONGEST_WORD = 30  # of wrapped text: longer ones, such as paths, are folded
MOST_LINES = 4  # of a text in its column: a longer one goes below its row
FEW = 4  # texts of a column are few where they are at most one of so many
COLUMN_GAP = 2  # blanks between two columns
_BLANK = ("", "-")


def print_table(title: str, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    """Print a table that fits the terminal. Of a row, texts to copy go above it, long ones below it."""
    widths, below = fit(columns, cells, console().width)
    console().print(Text(words.one_line(title), style="bold"))
    over = [[n for n, width in widths.items() if not columns[n].wrap and cell_len(row[n]) > width] for row in cells]
    tall = [[n for n, width in widths.items() if columns[n].wrap and _is_tall(row[n], width)] for row in cells]
    if not any(over) and not any(tall) and not below:
        console().print(_grid(columns, widths, cells, header=True), crop=False)
        return
    console().print(_grid(columns, widths, [], header=True), crop=False)
    for row, above, lower in zip(cells, over, ([*below, *numbers] for numbers in tall), strict=True):
        for number in above:
            console().print(Text(row[number]), soft_wrap=True)  # no break is put into what people copy
        rest = ["" if number in above or number in lower else text for number, text in enumerate(row)]
        console().print(_grid(columns, widths, [rest], header=False), crop=False)
        for number in lower:
            if row[number] not in _BLANK:
                name = f"{words.one_line(columns[number].name)}: " if len(lower) > 1 else ""
                console().print(Padding(Text(name + row[number], overflow="fold"), (0, 0, 0, 4)))


def _grid(
    columns: Sequence[Column], widths: Mapping[int, int], cells: Sequence[Sequence[str]], *, header: bool
) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="dim", show_header=header)
    for number, width in widths.items():
        column = columns[number]
        name = words.one_line(column.name)
        justify: Literal["left", "right"] = "right" if column.right else "left"
        grid.add_column(name, justify=justify, width=width, no_wrap=not column.wrap, overflow="fold")
    grid.width = sum(widths.values()) + COLUMN_GAP * (len(widths) - 1)
    for row in cells:
        grid.add_row(*(Text(row[number], STYLES.get(row[number], "")) for number in widths))
    return grid


def fit(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> tuple[dict[int, int], list[int]]:
    """Return the widths of the columns by their numbers, and the columns whose text goes below each row.

    Columns of a rank are left out where all their cells are blank, then from the highest rank on until the others
    fit. Where even columns of rank 0 are too wide together, those that wrap go below the row, as does a column most
    texts of which are too long for it, or are blank while others are left out. What is left over is shared by the
    columns that wrap, by how much their text lacks. Where columns that neither wrap nor go are too wide, or a few long
    texts in one of them take the room of others, it has room for texts of up to half the terminal alone.
    """
    texts = [[line[number] for line in cells] for number in range(len(columns))]
    remaining = [n for n, column in enumerate(columns) if not column.rank or not set(texts[n]).issubset(_BLANK)]
    room = _Room.of(columns, texts, width)
    if room.left_by(remaining) < 0:
        room = room.without_long_texts(columns, texts)
    below: list[int] = []
    while True:
        visible = _visible(columns, remaining, room)
        widths = room.shared_by(visible)
        lack, cut = room.left_by(visible) < 0, len(visible) < len(remaining)
        lower = [
            n
            for n in visible
            if columns[n].wrap
            and (lack or _are_mostly_tall(texts[n], widths[n]) or (cut and _are_mostly_blank(texts[n])))
        ]
        if not lower or len(lower) == len(visible):  # nothing would stay above the text
            return widths, below
        below += lower
        remaining = [number for number in remaining if number not in lower]


@dataclass(frozen=True, slots=True)
class _Room:
    """The width of a terminal, and those of columns: what their texts take in full, and what they need at least."""

    width: int
    natural: Sequence[int]
    least: Sequence[int]

    @classmethod
    def of(cls, columns: Sequence[Column], texts: Sequence[Sequence[str]], width: int) -> _Room:
        """Return the room that these columns with these texts need; only those that wrap can do with less."""
        named = [[column.name, *inside] for column, inside in zip(columns, texts, strict=True)]
        natural = [_longest(inside, "\n") for inside in named]
        least = [
            min(_longest(inside, r"\s"), LONGEST_WORD) if column.wrap else full
            for column, inside, full in zip(columns, named, natural, strict=True)
        ]
        return cls(width, natural, least)

    def left_by(self, numbers: Sequence[int]) -> int:
        """Return how much of the width columns leave over at their least; negative where it is too little."""
        return self.width - sum(self.least[number] for number in numbers) - COLUMN_GAP * (len(numbers) - 1)

    def shared_by(self, visible: Sequence[int]) -> dict[int, int]:
        """Return the widths of the columns when what is left over is shared by how much their texts lack."""
        lacks = {number: self.natural[number] - self.least[number] for number in visible}
        share = min(1.0, max(self.left_by(visible), 0) / (sum(lacks.values()) or 1))
        return {number: self.least[number] + int(lacks[number] * share) for number in visible}

    def without_long_texts(self, columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> _Room:
        """Return the room with less for the widest of the columns that must stay, unless many of its texts are long."""
        rigid = [number for number, column in enumerate(columns) if not column.rank and not column.wrap]
        if not rigid:
            return self
        widest = max(rigid, key=self.least.__getitem__)
        short = [wide for wide in map(cell_len, texts[widest]) if wide <= self.width // 2]
        are_few = FEW * (len(texts[widest]) - len(short)) <= len(texts[widest])
        if self.left_by(rigid) >= 0 and not are_few:
            return self
        enough = {widest: max([cell_len(columns[widest].name), *short])}
        natural, least = ([enough.get(n, w) for n, w in enumerate(of)] for of in (self.natural, self.least))
        return _Room(self.width, natural, least)


def _visible(columns: Sequence[Column], remaining: Sequence[int], room: _Room) -> list[int]:
    """Return the columns without those of the highest ranks for which there is no room."""
    visible = list(remaining)
    while room.left_by(visible) < 0 and (optional := [number for number in visible if columns[number].rank]):
        visible.remove(max(optional, key=lambda number: columns[number].rank))
    return visible


def _longest(texts: Sequence[str], separator: str) -> int:
    """Return the width of the longest part of the texts between separators."""
    return max(cell_len(part) for text in texts for part in re.split(separator, text))


def _are_mostly_tall(texts: Sequence[str], width: int) -> bool:
    return 2 * sum(_is_tall(text, width) for text in texts) > len(texts)


def _are_mostly_blank(texts: Sequence[str]) -> bool:
    return 2 * sum(text in _BLANK for text in texts) > len(texts)


def _is_tall(text: str, width: int) -> bool:
    return len(text) > MOST_LINES * width
