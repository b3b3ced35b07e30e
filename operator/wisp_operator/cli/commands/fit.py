"""``wisp fit``: the memory ledger of a model on a GPU one may not even have, and the verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import click

from wisp_operator.api import InferenceModel, Runtime
from wisp_operator.cli.display import ledger
from wisp_operator.cli.fit_targets import Target, read_target
from wisp_operator.core.fit import verdict
from wisp_operator.core.naming.grants import foreign_meaning
from wisp_operator.errors import WispError
from wisp_operator.local.machine import hardware
from wisp_operator.local.pod_template import Device as Choice
from wisp_plan.errors import PlanError, UnknownCard
from wisp_plan.fit.verdict import Fit
from wisp_plan.hardware.catalogue import Card
from wisp_plan.hardware.gpus import DEFAULT_FRACTION, find_card
from wisp_plan.presets import PUBLISHED
from wisp_plan.stored_presets import STORED_SCHEMES

REFUSED, UNKNOWN = 1, 2  # exit codes
STORED_EXAMPLES = ", ".join(name for name in STORED_SCHEMES if not name.startswith("int4_g"))
EXAMPLES = f"""\b
Examples:
  wisp fit model.yaml                       on what the manifest asks for, else on this machine
  wisp fit chat.yaml code.yaml --gpu l4
  wisp fit hf://Qwen/Qwen3-8B --gpu h100 --max-context 32768
  wisp fit ./my-model --device cpu --json
  wisp fit qwen3.6-35b-a3b --gpu h100 --quantization fp8_block

Published shapes: {", ".join(PUBLISHED)}.

Exit codes: 0 everything fits, 1 something does not, or it or its GPU is refused, 2 it cannot be known.
"""


def _choices(field: str) -> tuple[str, ...]:
    """Values of a field of ``spec.runtime``."""
    return get_args(get_type_hints(Runtime)[field])


def _one_card(_context: click.Context, _parameter: click.Parameter, names: Sequence[str]) -> str | None:
    """Return the card of ``--gpu``; None without the option."""
    if len(names) > 1 or any("," in name for name in names):
        raise click.BadParameter("one card at a time: run the command once for each.")
    if names and not names[0].strip():
        raise click.BadParameter("it is empty: name a card, such as l4, or leave the option out.")
    return names[0] if names else None


@click.command("fit", epilog=EXAMPLES)
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@click.option(
    "--gpu",
    metavar="NAME",
    multiple=True,
    callback=_one_card,
    help="A card: l4, a100-80gb, h100, rtx4090, …; default: the manifest's.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="Device of this machine to check; --gpu outranks it. cuda: refused where there is no GPU.",
)
@click.option(
    "--max-context", type=click.IntRange(1), help="Tokens a sequence may hold, instead of the manifest's."
)
@click.option("--max-concurrent", type=click.IntRange(1, 1024), help="Sequences at a time.")
@click.option(
    "--quantization",
    type=click.Choice((*_choices("quantization"), *STORED_SCHEMES)),
    help="Of the weights; auto: as stored, where the card has kernels for that (docs/quantization.md). From "
    "fp8_block on: a published shape, as if it were stored so.",
)
@click.option(
    "--head-quantization", type=click.Choice(_choices("head_quantization")), help="Of the head: bf16 or fp8."
)
@click.option(
    "--kv-cache-dtype", type=click.Choice(_choices("kv_cache_dtype")), help="Of keys and values; auto: bf16."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(targets: Sequence[str], gpu: str | None, device: Choice, as_json: bool, **runtime: Any) -> None:
    """Say whether the models of each TARGET fit.

    TARGET is a manifest, a folder, a GGUF file or hf://ORG/NAME, of which config.json and the headers of the
    weights are read, nothing more; or the name of a published model's shape, for which nothing is.
    """
    chosen = {key: value for key, value in runtime.items() if value is not None}
    failures = Failures()
    answers = _answers(_read(targets, chosen, failures), gpu, device, failures)
    cards = {answer.device_name: _card(answer) for _, answer in answers}
    if as_json:
        documents = [_document(target, answer, cards[answer.device_name]) for target, answer in answers]
        click.echo(json.dumps(documents, indent=2))
    else:
        for target, answer in answers:
            ledger.show(target.name, answer)
            for note in _notes(target, answer, may_use_gpu=device != "cpu"):
                click.echo(note)
        for card in filter(None, cards.values()):
            click.echo(_caution(card), nl=False)
        if len(answers) > 1:
            click.echo("Each model is checked alone, as if the others were asleep.")
    refused = any(card and card.support == "refused" for card in cards.values())
    does_not_fit = refused or not all(answer.fits for _, answer in answers)
    raise click.exceptions.Exit(failures.exit_code or int(does_not_fit))


@dataclass
class Failures:
    """Targets and models without a ledger.

    Attributes:
        exit_code: 2 if anything cannot be known, 1 if the models are only refused.
    """

    exit_code: int = 0

    def report(self, error: Exception, name: str = "") -> None:
        """Report an error on stderr, with the ``name`` of the target or model where there are several."""
        click.echo(f"wisp fit: {name}: {error}" if name else f"wisp fit: {error}", err=True)
        code = REFUSED if isinstance(error, PlanError) and verdict.is_unsupported(error) else UNKNOWN
        self.exit_code = max(self.exit_code, code)


def _read(texts: Sequence[str], chosen: dict[str, Any], failures: Failures) -> list[Target]:
    """Return the models of each target; one that cannot be read is reported and left out."""
    targets = []
    for text in texts:
        try:
            targets += read_target(text, chosen)
        except (PlanError, WispError) as error:
            failures.report(error, "" if len(texts) == 1 or text in str(error) else text)
    return targets


def _answers(
    targets: Sequence[Target], gpu: str | None, device: Choice, failures: Failures
) -> list[tuple[Target, Fit]]:
    """Plan each model alone; one that cannot be planned is reported and left out."""
    answers = []
    for target in targets:
        try:
            answers.append((target, _plan(target, gpu, device)))
        except (PlanError, WispError) as error:
            failures.report(error, target.name if len(targets) > 1 else "")
    return answers


def _notes(target: Target, answer: Fit, *, may_use_gpu: bool) -> Iterator[str]:
    """Yield what a reader of the verdict would not expect.

    Args:
        may_use_gpu: the user did not ask for the CPU.
    """
    model, name = target.model, target.name
    if target.shape:
        asked = {model.spec.runtime.quantization, target.shape.stored} - {"auto"}
        other = "" if asked else f" As if stored in another format: --quantization {STORED_EXAMPLES}, …"
        yield f"No checkpoint was read: these are the sizes of the published {name}.{other}"
    is_on_cpu = answer.device_name == hardware.THIS_MACHINE
    if target.is_manifest and may_use_gpu and model.spec.gpu.count and is_on_cpu:
        yield (
            f"{name} wants a GPU, and this machine has none that nvidia-smi lists: checked for the "
            "memory of its CPU. Name a card to check for that: --gpu l4"
        )
    if meaning := foreign_meaning(model.served_name, model.key):
        yield f"spec.model.servedName: {meaning} {name} is then reached as {model.key} alone."


def _card(answer: Fit) -> Card | None:
    """Card of the catalogue that was checked; None for any other device."""
    try:
        return find_card(answer.device_name)
    except UnknownCard:
        return None


def _caution(card: Card) -> str:
    """Caution about a card on which no model has run; empty for others."""
    major, minor = card.capability
    if card.support == "refused":
        lack = "" if card.has_bf16 else ", which has no bf16 (activations are bf16, whatever the weights are)"
        return (
            f"The runtime refuses the {card.name}: there are no kernels for compute capability "
            f"{major}.{minor}{lack}. Models have run on an H200; docs/kernels.md has the table.\n"
        )
    if card.support == "runs":
        return ""
    if card.hardware == "hopper":
        return f"No model has run on the {card.name} yet: its kernels are the same as on an H200.\n"
    return (
        f"No model has run on the {card.name} yet: its kernels are compiled, and tested on an H200 alone.\n"
    )


def _plan(target: Target, gpu: str | None, choice: Choice) -> Fit:
    device = verdict.of_card(find_card(gpu)) if gpu else _device(target.model, choice)
    return verdict.plan(target.model, target.files(), device)


def _device(model: InferenceModel, choice: Choice) -> verdict.Device:
    """Device that the manifest names; where it names none, this machine's within the manifest's limits.

    Raises:
        NoGpu: ``choice`` is ``cuda``, and this machine has no GPU.
    """
    asked = verdict.device_of(model.spec.gpu) if choice == "auto" else None
    gpus = hardware.cards()
    hardware.require_gpu(choice, gpus)
    device = asked or hardware.device_for(model.spec.gpu, choice, gpus)
    limit = model.spec.resources.limits.memory
    if device.kind != "cpu" or limit is None:
        return device
    available_bytes = min(device.available_bytes, int(limit.bytes * DEFAULT_FRACTION))
    return verdict.Device("cpu", f"CPU within spec.resources.limits.memory {limit}", available_bytes)


def _document(target: Target, answer: Fit, card: Card | None) -> dict[str, Any]:
    rows = [
        {"name": row.name, "bytes": row.size_bytes, "why": row.explanation} for row in answer.ledger.rows()
    ]
    return {
        "model": target.name if target.shape else target.model.key,
        "uri": None if target.shape else target.model.spec.model.uri,
        "device": answer.device_name,
        "support": card.support if card else None,
        "requiredBytes": answer.required_bytes,
        "quantization": answer.quantization,
        "kvCacheDtype": answer.kv_dtype,
        "kvCacheBf16Layers": answer.kv.plain_layers,
        **answer.to_dict(),
        "kvBytesPerContextToken": answer.ledger.kv_bytes_per_context_token,
        "kvWindowBytesPerSequence": answer.ledger.kv_window_bytes,
        "rows": rows,
        "remedies": [remedy.text for remedy in answer.remedies],
        "basis": answer.basis,
    }
