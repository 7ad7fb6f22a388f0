"""Where a long command is: one changing line on a terminal, one line for each step in a log."""

from types import TracebackType

from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from transfuse.cli.output import err


class Status:
    """What is done now, of how many; ``quiet`` says nothing."""

    def __init__(self, total: int, quiet: bool = False) -> None:
        self.total, self.done = total, 0
        self.plain = not (quiet or err.is_terminal)
        columns = (MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        hidden = quiet or self.plain
        self.progress = Progress(*columns, console=err, transient=True, disable=hidden)
        self.task = self.progress.add_task("", total=total)

    def __enter__(self) -> "Status":
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def tell(self, text: str) -> None:
        """What has just begun."""
        if self.plain:
            err.print(Text(f"{self.done + 1}/{self.total} {text}"), soft_wrap=True)
        else:
            # Brackets are text here, not styles.
            self.progress.update(self.task, description=text.replace("[", r"\["))

    def advance(self) -> None:
        """One more is done."""
        self.done += 1
        self.progress.advance(self.task)
