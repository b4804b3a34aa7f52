"""A small terminal: what a screen shows after some output. It knows only what the live line and plain text need."""

import re

PIECE = re.compile(r"\x1b\[([\d;]*)([A-Za-z])|\x1b([78D])|[\r\n]|[^\x1b\r\n]")


class Screen:
    """Rows from 0, as after a reset. What scrolls off the first row goes to `gone`."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.cells = [[" "] * columns for _ in range(rows)]
        self.gone: list[str] = []
        self.row = self.column = 0
        self.last = rows - 1
        """last row of the region that scrolls; the first one is always 0"""
        self._saved = (0, 0)

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.cells]

    def resize(self, columns: int, rows: int) -> None:
        """As terminals do it: the region is reset, and rows are cut at the top or added at the bottom."""
        while len(self.cells) > rows:
            if self.row < len(self.cells) - 1:
                self.cells.pop()
            else:
                self.gone.append("".join(self.cells.pop(0)).rstrip())
                self.row -= 1
        self.cells = [(row + [" "] * columns)[:columns] for row in self.cells]
        self.cells += [[" "] * columns for _ in range(rows - len(self.cells))]
        self.columns, self.rows, self.last = columns, rows, rows - 1
        self.column = min(self.column, columns - 1)

    def feed(self, text: str) -> None:
        for found in PIECE.finditer(text):
            if found[2]:
                self._control(found[2], [int(each or 0) for each in found[1].split(";")])
            elif found[3] == "7":
                self._saved = self.row, self.column
            elif found[3] == "8":
                self.row, self.column = self._saved
            elif found[3] == "D" or found[0] == "\n":
                self._down()
            elif found[0] == "\r":
                self.column = 0
            else:
                self._put(found[0])

    def _put(self, letter: str) -> None:
        if self.column == self.columns:
            self.column = 0
            self._down()
        self.cells[self.row][self.column] = letter
        self.column += 1

    def _down(self) -> None:
        if self.row == self.last:
            self.gone.append("".join(self.cells.pop(0)).rstrip())
            self.cells.insert(self.last, [" "] * self.columns)
        else:
            self.row = min(self.row + 1, self.rows - 1)

    def _control(self, kind: str, numbers: list[int]) -> None:
        match kind:
            case "A":
                self.row = max(0, self.row - max(1, numbers[0]))
            case "H":
                self.row, self.column = numbers[0] - 1, numbers[1] - 1
            case "K":
                self.cells[self.row] = [" "] * self.columns
            case "J":
                self.cells[self.row][self.column :] = [" "] * (self.columns - self.column)
                self.cells[self.row + 1 :] = [[" "] * self.columns for _ in range(self.rows - self.row - 1)]
            case "r":
                self.last = (numbers[1] if len(numbers) > 1 else self.rows) - 1
                self.row = self.column = 0
            case "m":
                pass
            case _:
                raise AssertionError(f"not known: {kind}")
