"""Entry point of the command line: the list of commands, error messages and exit codes.

`fedtaste --help` is printed from the table below alone. The options of a command are imported when its help is printed
or its arguments are read; the command itself, and torch with it, when it is called (parser.load_function).
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

import click

from fedtaste import __version__
from fedtaste.errors import FedtasteError, was_interrupted
from fedtaste.text import did_you_mean, printable

COMMANDS = {  # the first sentence of each command's help (a test compares them)
    "run": "Train one method on one data set: a result table, and a run folder that can be resumed.",
    "fit": "Train a model for production on everything and everybody, or continue one with new data.",
    "tune": "Search the settings of a method on validation data: the best ones, a report and a run.toml.",
    "compare": "Train several methods, or one over a sweep of a setting, on the same data: one table and one report.",
    "resume": "Resume a run or a comparison that was interrupted; the result is the same as without the interruption.",
    "report": "Write the HTML report of a finished run or comparison again, and show its table.",
    "federate": "Train as `fedtaste run` does, as a real federation over Flower, with TLS and node keys.",
    "recommend": "Recommend items to a person of the data, or to a new one from what they like.",
    "similar": "Show the items that are most similar to one item.",
    "export": "Write a static folder with a page that recommends in the browser.",
    "serve": "Host the page on this machine alone: everything is computed in the browser.",
    "monitor": "Answer /health and /metrics about a federation, for its server (a run folder) or a node (its store).",
    "audit": "Attack the uploads that a configuration really produces, and show what a server learns about people.",
    "poison": "Let some people turn hostile, and measure what they achieve with a plain sum and with a robust one.",
    "bench": "Measure the CPU time of one round by loop, vmap and kernel, and how it grows with the interactions.",
    "reproduce": "Train the main table of a paper within minutes: our figures beside the published ones.",
    "data": "Data sets: list, fetch, import, describe.",
    "data list": "List the data sets that have a name.",
    "data fetch": "Fetch a data set into the cache, and check it; or say where to get one that fedtaste may not fetch.",
    "data import": "Check a file of your own, and write it in the form that fedtaste reads fastest.",
    "data describe": "Count people, items and interactions; of labelled examples: clients, features, classes.",
    "privacy": "Privacy: what private runs released about the same people.",
    "privacy ledger": "Show the private runs on the same people and their total epsilon.",
}
STOPPED = "Stopped while no run was being trained; nothing is lost."


@click.pass_context
def show_help(context: click.Context) -> None:
    """Show the help of a group that is called without a command."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


class LazyGroup(click.Group):
    """A group of commands that are built when they are needed."""

    def __init__(self, prefix: str, help: str) -> None:
        settings = {"help_option_names": ["-h", "--help"]}
        name = prefix.strip() or "fedtaste"
        super().__init__(name, help=help, callback=show_help, invoke_without_command=True, context_settings=settings)
        self.prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands of this group."""
        rest = [name[len(self.prefix) :] for name in COMMANDS if name.startswith(self.prefix)]
        return [name for name in rest if " " not in name]

    def get_command(self, ctx: click.Context, name: str) -> click.Command:
        """Build one command; an unknown name is refused with a suggestion."""
        full = self.prefix + name
        if name not in self.list_commands(ctx):
            raise click.UsageError(did_you_mean(name, self.list_commands(ctx), "command"), ctx)
        if any(other.startswith(f"{full} ") for other in COMMANDS):
            return LazyGroup(f"{full} ", COMMANDS[full])
        from fedtaste.cli.options import COMMANDS as models  # pydantic: only for a command's own options
        from fedtaste.cli.parser import build_command

        return build_command(name, models[full])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without building them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[self.prefix + name]) for name in self.list_commands(ctx)])


app = click.version_option(__version__, message="fedtaste %(version)s", help="Print the version.")(
    LazyGroup("", "fedtaste: personalised federated recommendation. Start with `fedtaste run`.")
)


def fail(message: str, code: int = 2) -> NoReturn:
    """Print an error and exit. Names from data must not send control codes to a terminal."""
    click.secho(f"error: {printable(message)}", fg=None if os.environ.get("NO_COLOR") else "red", err=True)
    sys.exit(code)


def main() -> None:
    """Run the command of sys.argv. User errors exit with 2 and a message; tracebacks only with FEDTASTE_DEBUG."""
    try:
        with app.make_context("fedtaste", sys.argv[1:]) as context:
            app.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except FedtasteError as error:
        fail(str(error))
    except click.ClickException as error:
        context_of = error.ctx if isinstance(error, click.UsageError) else None
        fail(error.format_message() + (f" See `{context_of.command_path} --help`." if context_of else ""))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (MemoryError, OSError) as error:
        fail(f"{type(error).__name__}: {error}. Free some memory or space, or use smaller data.")
    except (KeyboardInterrupt, Exception) as error:
        if was_interrupted(error):
            fail(STOPPED)
        _report_bug(error)
    sys.exit(0)


def _report_bug(error: BaseException) -> NoReturn:
    if type(error).__name__ == "_LinAlgError":  # torch's; torch may not have been imported
        fail("A system of equations cannot be solved: lam or alpha0 is far too large or too small.")
    if os.environ.get("FEDTASTE_DEBUG"):
        traceback.print_exc()
    words = f"{type(error).__name__}: {error}"
    fail(f"This is a bug in fedtaste: {words}. Please report it; FEDTASTE_DEBUG=1 shows where.", 1)


if __name__ == "__main__":
    main()
