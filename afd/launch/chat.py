"""A small interactive chat that streams."""

from __future__ import annotations

from rich.console import Console

from afd.errors import RequestError
from afd.llm import LLM
from afd.sampling import SamplingParams

_HELP = "/clear starts over, /quit or Ctrl-D ends; Ctrl-C cuts an answer short."


def chat_loop(llm: LLM, params: SamplingParams, console: Console) -> None:
    """Reads turns until end of input. Ctrl-C while answering only ends that answer."""
    console.print(_HELP, style="dim")
    history: list[dict[str, str]] = []
    while True:
        try:
            line = console.input("[bold cyan]you[/] > ").strip()
        except EOFError:
            console.print()
            return
        if line == "/quit":
            return
        if line == "/clear":
            history.clear()
            continue
        if not line:
            continue
        history.append({"role": "user", "content": line})
        try:
            answer = _answer(llm, history, params, console)
        except RequestError as error:
            console.print(f"{error}; /clear starts over", style="red")
            history.pop()
            continue
        history.append({"role": "assistant", "content": answer})


def _answer(
    llm: LLM, history: list[dict[str, str]], params: SamplingParams, console: Console
) -> str:
    ids = llm.tokenizer.encode_chat(history)
    shown = ""
    try:
        for output in llm.stream([ids], params):
            console.print(output.text[len(shown) :], end="", markup=False, highlight=False)
            shown = output.text
    except KeyboardInterrupt:
        console.print(" [interrupted]", style="dim", markup=False, end="")
    console.print()
    return shown
