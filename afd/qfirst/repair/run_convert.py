"""One `afd-qfirst convert` from its flags to its record."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from afd.qfirst.block import parameter_count
from afd.qfirst.checkpoint import LoadedModel, load, save
from afd.qfirst.repair.arm import Schedule
from afd.qfirst.repair.attention import Backend
from afd.qfirst.repair.conversion import (
    FIT_WINDOWS,
    Bench,
    Conversion,
    Outcome,
    Start,
    Train,
    conversion_wiring,
)
from afd.qfirst.repair.corpus import (
    Corpus,
    CorpusError,
    Windows,
    read_corpus,
    split,
    tokenizer_tokens,
    windows,
)
from afd.qfirst.repair.optimizer import OptimizerSettings
from afd.qfirst.repair.records import (
    ConversionRecord,
    Text,
    Training,
    software,
    write_record,
)
from afd.qfirst.repair.tables import conversion_table
from afd.tools.stages import Stages


def convert(
    args: argparse.Namespace,
    held_out: tuple[int, ...] | None,
    command: str,
    stages: Stages,
    elapsed: Callable[[], float],
) -> str:
    """Does the whole run; returns its table. Raises AfdError with one sentence."""
    torch.set_num_threads(args.threads)
    corpus = read_corpus(args.corpus)
    with stages.stage("Reading the model"):
        model = load(args.model, getattr(torch, args.dtype))
    wiring = conversion_wiring(model.decoder, args.half_layers, held_out)
    with stages.stage("Reading the corpus"):
        train, test = _windows(corpus, model, args)
    schedule = Schedule(
        args.steps, args.batch, args.seed, OptimizerSettings(args.learning_rate), args.save_every
    )
    plan = Conversion(
        wiring, Train(args.train), Start(args.start), schedule, Backend(args.attention)
    )
    bench = Bench(model.decoder, train, test, args.work or args.out / "work", stages)
    outcome = bench.run(plan)
    record = _record(args, model, bench.source_digest, corpus, train, plan, outcome, command,
                     elapsed())  # fmt: skip
    with stages.stage("Saving the converted model"):
        save(model, outcome.decoder, args.out / "model")
        write_record(args.out / "record.json", record)
    return conversion_table([(args.out.name, record)])


def _windows(
    corpus: Corpus, model: LoadedModel, args: argparse.Namespace
) -> tuple[Windows, Windows]:
    limit = model.decoder.config.max_positions
    if max(args.window, args.score_window) > limit:
        raise CorpusError(f"windows must not be longer than the model's {limit} positions")
    parts = split(corpus, tokenizer_tokens(model.tokenizer()))
    train = windows(parts.train, args.window)
    if len(train) < args.batch:
        raise CorpusError(
            f"the corpus is too short: its first 90 % give {len(train)} windows of {args.window} "
            f"tokens and a step takes {args.batch}; give more text or shorter windows"
        )
    return train, windows(parts.test, args.score_window).spread(args.score_windows)


def _record(
    args: argparse.Namespace,
    model: LoadedModel,
    digest: str,
    corpus: Corpus,
    train: Windows,
    plan: Conversion,
    outcome: Outcome,
    command: str,
    seconds: float,
) -> ConversionRecord:
    decoder = outcome.decoder
    moved = plan.wiring.moved_layers(decoder.config.layers)
    settings = plan.schedule.optimizer
    return ConversionRecord(
        model=args.model,
        model_digest=digest,
        parameters=parameter_count(decoder),
        trained_parameters=sum(p.numel() for p in decoder.parameters() if p.requires_grad),
        layers=decoder.config.layers,
        half_layers=args.half_layers,
        held_out=plan.wiring.held_out,
        converted_layers=moved,
        train=plan.train.value,
        start=plan.start.value,
        fit_windows=min(FIT_WINDOWS, len(train)) if plan.start is Start.FIT else 0,
        training=Training(
            steps=args.steps,
            batch=args.batch,
            seed=args.seed,
            learning_rate=settings.peak,
            warmup=settings.warmup,
            beta1=settings.beta1,
            beta2=settings.beta2,
            weight_decay=settings.weight_decay,
        ),
        text=Text(
            files=corpus.names,
            digest=corpus.digest,
            size_bytes=corpus.size_bytes,
            window_tokens=args.window,
            train_windows=len(train),
            score_windows=args.score_windows,
            score_window_tokens=args.score_window,
        ),
        software=software(decoder.embed_tokens.weight.dtype, plan.backend.value),
        stock=outcome.stock,
        untrained=outcome.untrained,
        started=outcome.started,
        reference=outcome.reference,
        converted=outcome.converted,
        reference_losses=tuple(outcome.reference_losses),
        converted_losses=tuple(outcome.converted_losses),
        seconds=seconds,
        command=command,
    )
