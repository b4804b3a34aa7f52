"""The row at the bottom of a terminal: other output is as it was, whatever it is."""

import os
from collections.abc import Iterator

import pytest

from peers.live.process import Row
from tests.peers.live.emulator import Screen


class Terminal:
    """A screen that a row draws on, through a pipe."""

    def __init__(self, columns: int, rows: int) -> None:
        self.screen = Screen(columns, rows)
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self.row = Row(self._write, lambda _: os.terminal_size((self.screen.columns, self.screen.rows)))

    def draw(self, text: str = "figures") -> str:
        self.row.draw(lambda room: text[:room])
        return self.take()

    def clear(self) -> str:
        self.row.clear()
        return self.take()

    def take(self) -> str:
        try:
            said = os.read(self._read, 1 << 16).decode()
        except BlockingIOError:
            return ""
        self.screen.feed(said)
        return said

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal(20, 6)
    yield made
    made.close()


@pytest.mark.parametrize("before", [0, 2, 9])
def test_output_goes_on_above_the_row__also_an_unfinished_line(terminal: Terminal, before: int) -> None:
    screen, said = terminal.screen, [f"before {number}" for number in range(before)]
    screen.feed("".join(f"{line}\r\n" for line in said))
    for number in range(12):
        screen.feed(f"step {number}: ")
        terminal.draw(f"figures {number}")
        screen.feed("\r" + f"step {number}: done\r\n")
        said.append(f"step {number}: done")
        assert screen.lines[-1] == f"figures {number}"
        assert [line for line in (*screen.gone, *screen.lines[:-1]) if line] == said
    terminal.clear()
    screen.feed("$ ")
    assert [line for line in (*screen.gone, *screen.lines) if line] == [*said, "$"] and screen.last == screen.rows - 1


def test_long_text_does_not_wrap_and_long_output_does(terminal: Terminal) -> None:
    terminal.draw("x" * 50)
    terminal.screen.feed("y" * 45 + "\r\n")
    assert terminal.screen.lines == ["y" * 20, "y" * 20, "y" * 5, "", "", "x" * 19]


@pytest.mark.parametrize(("columns", "rows"), [(12, 4), (12, 6), (30, 9), (20, 5)])
def test_terminal_that_is_resized__one_row_and_no_rest_of_the_old_one(
    terminal: Terminal, columns: int, rows: int
) -> None:
    screen = terminal.screen
    for number in range(8):
        terminal.draw()
        screen.feed(f"step {number}\r\n")
    screen.resize(columns, rows)
    terminal.draw()
    screen.feed("step 8\r\nstep 9\r\n")
    assert screen.lines[-1] == "figures"
    told = [line for line in (*screen.gone, *screen.lines[:-1]) if line]
    assert told == [f"step {number}" for number in range(10)]


def test_terminal_too_low_for_the_row__nothing_is_drawn_and_a_drawn_row_is_given_back(terminal: Terminal) -> None:
    terminal.draw()
    terminal.screen.resize(20, 3)
    terminal.draw()
    assert "figures" not in terminal.screen.lines and terminal.screen.last == 2
    assert terminal.draw() == terminal.clear() == ""
