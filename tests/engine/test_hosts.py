"""The control plane over TCP: the same tokens, and keys that nobody else can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from afd import LLM, SamplingParams
from afd.launch import engine
from afd_sched.security import CoordinatorKeys, PeerKeys, launch_keys
from tests.loopback import LOOPBACKS


def test_tokens_over_tcp_are_those_of_a_local_launch(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"skip_tokenizer_init": True, "threads": 1, "m": 2, "n": 1}
    prompts, params = [[1, 2, 3], [4]], SamplingParams(max_new_tokens=9, ignore_eos=True)
    secrets: list[str] = []

    def remember(names: list[bytes]) -> tuple[CoordinatorKeys, dict[bytes, PeerKeys]]:
        coordinator, peers = launch_keys(names)
        secrets.extend([coordinator.secret, *(keys.secret for keys in peers.values())])
        return coordinator, peers

    monkeypatch.setattr(engine, "launch_keys", remember)
    with LLM(checkpoint("qwen3"), host=LOOPBACKS[-1], **options) as llm:
        for child in psutil.Process().children():
            shown = [*child.cmdline(), *child.environ().values()]
            assert not any(secret in text for secret in secrets for text in shown)
        over_tcp = [output.token_ids for output in llm.generate(prompts, params)]
        assert llm.stats()["connections_refused"] == 0
    assert len(set(secrets)) == 5, "a key for the coordinator, the front end and each of 3 workers"
    with LLM(checkpoint("qwen3"), **options) as llm:
        assert over_tcp == [output.token_ids for output in llm.generate(prompts, params)]
