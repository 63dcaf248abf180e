"""The default models, as real text sees them: tokens equal Transformers', the answer is Paris."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd import LLM, SamplingParams
from afd.config import EngineConfig
from afd.launch.resolve import find_model
from tests.engine.cases import LANES, TOPOLOGIES
from tests.reference import first_differences, greedy

MODELS = ("smollm2-moe", "smollm2-mixtral", "smollm2-minimax-m2")
NEW_TOKENS = 64
TEXT = (Path(__file__).parents[2] / "README.md").read_text()
# Twenty beginnings of different lengths, cut from text of this repository.
PROMPTS = [TEXT[120 * i : 120 * i + 12 * (i + 1)] for i in range(20)]
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("m", "n"), TOPOLOGIES)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_equal_transformers_on_real_text(
    name: str, m: int, n: int, lanes: int
) -> None:
    path = find_model(EngineConfig(model=name))
    options = {"wire": "fp32", "dtype": "float32", "kv_tokens": 8192}
    with LLM(path, m=m, n=n, num_lanes=lanes, **options) as llm:
        prompts = [llm.tokenizer.encode(text) for text in PROMPTS]
        outputs = llm.generate(prompts, SamplingParams(max_new_tokens=NEW_TOKENS))
    answers = [greedy(path, tuple(prompt), NEW_TOKENS) for prompt in prompts]
    ties, faults = first_differences(answers, [output.token_ids for output in outputs])
    assert not faults, "\n".join(faults)
    assert ties <= 2


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["fp8", "bf16", "fp32"])
def test_the_demo_says_paris_on_every_wire(wire: str) -> None:
    with LLM("smollm2-moe", wire=wire, kv_tokens=8192) as llm:
        assert "Paris" in llm.chat(QUESTION, SamplingParams(max_new_tokens=24)).text
