"""``afd-launch``: start a launch, generate or chat, end it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import Progress

from afd.errors import AfdError, ConfigError, RequestError
from afd.launch.chat import chat_loop
from afd.launch.console import stderr_console
from afd.launch.flags import engine_config_from, given_values, parser
from afd.launch.report import print_resolved, topology
from afd.launch.resolve import ResolvedConfig, check_model, resolve
from afd.llm import LLM, Prompt
from afd.outputs import RequestOutput
from afd.sampling import SamplingParams

_EXIT_FAILED = 1
_EXIT_USAGE = 2
_EXIT_TERMINATED = 143


def _prompts(arguments: argparse.Namespace) -> list[str]:
    prompts = list(arguments.prompt)
    if arguments.prompt_file is not None:
        try:
            text = arguments.prompt_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--prompt-file cannot be read: {error}") from error
        prompts += [line for line in text.splitlines() if line.strip()]
        if not prompts:
            raise ConfigError(f"--prompt-file {arguments.prompt_file} holds no prompt")
    return prompts


def _sampling(arguments: argparse.Namespace) -> SamplingParams:
    try:
        return SamplingParams(
            max_new_tokens=arguments.max_new_tokens,
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            top_k=arguments.top_k,
            seed=arguments.seed,
            stop=tuple(arguments.stop),
            ignore_eos=arguments.ignore_eos,
        )
    except RequestError as error:
        raise ConfigError(str(error)) from error


def _token_ids(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split()]
    except ValueError as error:
        raise ConfigError(
            f"with --skip-tokenizer-init a prompt is token ids like '1 15 7', not {text!r}"
        ) from error


def _encode(llm: LLM, text: str, chat: bool | None) -> Prompt:
    if llm.config.engine.skip_tokenizer_init:
        return _token_ids(text)
    if chat is None:
        chat = llm.tokenizer.has_chat_template
    return llm.tokenizer.encode_chat([{"role": "user", "content": text}]) if chat else text


def _run(llm: LLM, prompts: list[str], arguments: argparse.Namespace, console: Console) -> None:
    encoded = [_encode(llm, text, arguments.chat) for text in prompts]
    start = time.perf_counter()
    outputs = llm.generate(encoded, _sampling(arguments))
    elapsed_s = time.perf_counter() - start
    stats = llm.stats()
    if arguments.json:
        print(json.dumps(_json(llm.config, outputs, stats)))
        return
    for prompt, output in zip(prompts, outputs, strict=True):
        if len(prompts) > 1:
            console.print(f"\n> {prompt}", style="bold", markup=False, highlight=False)
        print(output.text if llm.config.engine.skip_tokenizer_init is False else output.token_ids)
    tokens = sum(len(output.token_ids) for output in outputs)
    console.print(
        f"{tokens} tokens in {elapsed_s:.2f} s; median step {stats['step_ms_p50']:.1f} ms; "
        f"{stats['wire_bytes_out'] / 1e6:.1f} MB to the experts, "
        f"{stats['wire_bytes_back'] / 1e6:.1f} MB back",
        style="dim",
        highlight=False,
    )


def _json(
    config: ResolvedConfig, outputs: list[RequestOutput], stats: dict[str, float]
) -> dict[str, Any]:
    return {
        "outputs": [output.as_json() for output in outputs],
        "stats": stats,
        "topology": topology(config),
    }


def _terminated(number: int, frame: object) -> NoReturn:
    sys.exit(_EXIT_TERMINATED)


def _simulate(arguments: argparse.Namespace, console: Console) -> None:
    from afd.simulate.resolve import resolve_simulation
    from afd.simulate.run import run_simulation

    simulation = resolve_simulation(
        arguments.simulate,
        given_values(arguments),
        arguments.context,
        arguments.batch,
        arguments.steps,
    )
    run_simulation(simulation, arguments.json, console)


def _check_mode(arguments: argparse.Namespace) -> None:
    """Refuses flags that the asked kind of run would ignore."""
    if arguments.simulate is not None and (arguments.prompt or arguments.prompt_file):
        raise ConfigError("--simulate makes its own prompts; leave out --prompt and --prompt-file")
    for name in ("context", "batch", "steps"):
        if arguments.simulate is None and getattr(arguments, name) is not None:
            raise ConfigError(
                f"--{name} is for --simulate; a real run has --context-length and "
                "--max-running-requests"
            )


def _launch(arguments: argparse.Namespace, console: Console) -> None:
    _check_mode(arguments)
    if arguments.simulate is not None:
        _simulate(arguments, console)
        return
    prompts = _prompts(arguments)
    # All is checked before minutes of building or loading.
    sampling = _sampling(arguments)
    engine = engine_config_from(arguments)
    if engine.skip_tokenizer_init:
        for prompt in prompts:
            _token_ids(prompt)
    check_model(engine)
    interactive = not prompts
    if interactive and (arguments.json or not sys.stdin.isatty()):
        raise ConfigError("nothing to do: give --prompt or --prompt-file, or run on a terminal")
    if interactive and engine.skip_tokenizer_init:
        raise ConfigError("a chat needs a tokenizer; give --prompt with --skip-tokenizer-init")
    with Progress(console=console, transient=True) as progress:
        config = resolve(engine, progress)
    print_resolved(config, console)
    with console.status("starting"):
        llm = LLM.from_resolved(config)
    with llm:
        if interactive:
            chat_loop(llm, sampling, console)
        else:
            _run(llm, prompts, arguments, console)


def main(argv: Sequence[str] | None = None) -> int:
    """0 when done; 1 for a failed run, 2 for bad input, 143 after SIGTERM."""
    console = stderr_console()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        _launch(parser().parse_args(argv), console)
    except AfdError as error:
        console.print(f"afd-launch: {error}", style="red", markup=False, highlight=False)
        return _EXIT_USAGE if isinstance(error, ConfigError) else _EXIT_FAILED
    return 0
