"""From flags to a Simulation; whatever the modelled GPUs could not hold is refused here."""

from __future__ import annotations

from typing import Any

from afd.config import Topology
from afd.errors import ConfigError
from afd.launch.resolve import check_numbers, check_topology
from afd.llm import engine_config
from afd.plan.cuts import Cut
from afd.plan.errors import PlanError
from afd.plan.hardware import Hardware
from afd.plan.memory import attention_batch, attention_weight_bytes, require_ffn_fits
from afd.plan.model_spec import ModelSpec, load_model
from afd.simulate.config import Simulation
from afd.simulate.profile import Profile, load_profile, service_times

WARM_UP_STEPS = 8
_KV_BYTES = 2.0
_CUT = Cut.ROUTED_TOKENS
_DEFAULT_CONTEXT = 8192
_DEFAULT_STEPS = 200


def _fitting(model: ModelSpec, hardware: Hardware, ffn_gpus: int, context: int) -> int:
    """Requests that an attention GPU holds; raises PlanError if the model does not fit."""
    if ffn_gpus:
        require_ffn_fits(model, hardware, _CUT, ffn_gpus)
    return attention_batch(model, hardware, _CUT, context, _KV_BYTES)


def _batch(
    asked: int | None, profile: Profile, model: ModelSpec, ffn_gpus: int, context: int
) -> int:
    if asked is not None and asked < 1:
        raise ConfigError(f"--batch must be at least 1, not {asked}")
    hardware = profile.hardware
    if hardware is None:
        if asked is None:
            raise ConfigError(f"profile {profile.name} has no memory figures; give --batch")
        return asked
    try:
        fitting = _fitting(model, hardware, ffn_gpus, context)
    except PlanError as error:
        raise ConfigError(f"{model.name} on {hardware.name}: {error}") from error
    if asked is not None and asked > fitting:
        free = hardware.memory_bytes - attention_weight_bytes(model, _CUT)
        need = asked * model.kv_bytes_per_request(context, _KV_BYTES)
        raise ConfigError(
            f"--batch {asked} at --context {context} needs {need / 1e9:.0f} GB of KV, and "
            f"{hardware.name} has {free / 1e9:.0f} GB beside the weights: at most {fitting} fit"
        )
    return asked or fitting


def resolve_simulation(
    profile_name: str,
    values: dict[str, Any],
    context: int | None,
    batch: int | None,
    steps: int | None,
) -> Simulation:
    """``values``: EngineConfig's fields that were given; raises ConfigError in one sentence."""
    profile = load_profile(profile_name)
    try:
        model = load_model(str(values.get("model", "")))
    except PlanError as error:
        raise ConfigError(f"--simulate needs a model whose shape is known: {error}") from error
    context = _DEFAULT_CONTEXT if context is None else context
    steps = _DEFAULT_STEPS if steps is None else steps
    if steps < 1 or context < 1:
        raise ConfigError("--steps and --context must be at least 1")
    engine = engine_config({"workers_per_node": profile.gpus_per_node, **values})
    check_numbers(engine)
    if engine.n < 1:
        raise ConfigError("--simulate plays a disaggregated launch; give --n 1 or more")
    topology = Topology(
        attention_nodes=engine.m, ffn_nodes=engine.n, workers_per_node=engine.workers_per_node
    )
    check_topology(topology, engine, model.experts, model.moe_layers)
    batch = _batch(batch, profile, model, topology.ffn_ranks, context)
    # One prompt enters per rank and step; the first must still run when the last step is measured.
    new_tokens = batch + 2 * WARM_UP_STEPS + steps + 2
    prompt = context - new_tokens
    if prompt < 1:
        raise ConfigError(
            f"--context {context} is too short for --steps {steps} at --batch {batch}: a request "
            f"generates {new_tokens} tokens; give --context {new_tokens + 1} or more"
        )
    service_times(profile, model, engine.m, engine.n, context)
    given = {"max_running_requests": batch, "chunked_prefill_size": prompt, **values}
    page = engine.page_size
    return Simulation(
        engine=engine_config({"workers_per_node": profile.gpus_per_node, **given}),
        topology=topology,
        model=str(values["model"]),
        profile=profile_name,
        batch=batch,
        prompt=prompt,
        new_tokens=new_tokens,
        context_length=context,
        # The scheduler keeps a page of growth for each running request while it admits.
        pages=batch * (-(-context // page) + 1),
        steps=steps,
    )
