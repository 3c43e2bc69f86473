"""Translating plain text with a trained model: batches by length, beam search, the order of the input restored."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm

from reluformer.configuration.errors import UserError, one_line
from reluformer.modeling_reluformer.compiled.library import library
from reluformer.translating.fast_translation import FastTranslationModel, Search, reason_against
from reluformer.translating.moses import MosesStep
from reluformer.translating.options import Options
from reluformer.translating.readers import is_unicode
from reluformer.translating.sentences import DOCUMENT, source_language
from reluformer.translating.source_encoding import LongSources, Source, SourceEncoder, Split

if TYPE_CHECKING:  # importing Transformers' modelling code takes longer than a short translation
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_WORTH_BUILDING = 8  # sentences
# `stream` sorts by length within this many batches.
_BATCHES_AT_ONCE = 8
_Key = tuple[int, int, int]  # the number of a text, of a sentence in it, and of a piece in that


class _Score(NamedTuple):
    """The score of one source: log p(target | source), and over how many target tokens."""

    log_probability: float
    tokens: int


class _Batch(NamedTuple):
    """Translations of some sources: target ids (sources, longest translation) with the start token, how many of them
    were cut at the limit, and their scores, if these are wanted."""

    ids: Tensor
    unfinished: int
    scores: list[_Score]


class ScoredTranslation(NamedTuple):
    """A translation, and how sure the model is of it: the mean of log p over its target tokens, `</s>` included.

    It is at most 0. NaN: there was nothing to translate.
    """

    text: str
    log_probability: float


Translation = str | ScoredTranslation


class Translator:
    """Plain text in, plain text out; a Moses step that the tokenizer records is applied before and undone after.

    A text is translated sentence by sentence, and the white space and line breaks between its sentences stay as they
    were, unless the model was trained on documents. A translation does not depend on what else is translated: padding
    is masked, and sentences share a batch only if they have the same limit on the decoding length.

    Args:
        model: a sequence-to-sequence model; it is put into evaluation mode for each call and given back as it was.
        tokenizer: its tokenizer, whose source ids end in `</s>`.
        num_beams: width of the beam; 1 is greedy.
        length_penalty: exponent of the length by which a hypothesis' log-probability is divided.
        max_new_tokens: most target tokens, `</s>` included. Default: 2 · n + 16 for a source of n tokens, n rounded up
            to the next multiple of 16, and at most `max_position_embeddings`. A translation that reaches it is cut,
            with a warning.
        batch_tokens: source tokens with padding (sentences · longest) in a batch; a longer sentence is a batch of
            its own.
        split: "sentences" translates each sentence of a text by itself; "none" the text as a whole. A line break ends a
            sentence, and what has no letter and no digit stays as it is. None: "none" for a tokenizer that records
            `text_unit` "document", as those of recipes with packed documents do, else "sentences".
        long_sources: for sources, which are sentences or whole texts, with more tokens than `max_position_embeddings`:
            "error" refuses all texts before the first is translated; "split" cuts at the ends of sentences, or between
            tokens where a sentence alone is too long, joins the translations with a space, and warns.
        device: where to compute; None leaves the model where it is.
        compute: on a CPU, the type in which matrices are held and multiplied: "float32", whose translations are those
            of `generate`, or "int8", which is faster.
        scores: give each translation as a `ScoredTranslation`, with the mean of its tokens' log-probabilities.
        generation: other options of `GenerationConfig`, such as `no_repeat_ngram_size=3`. By default nothing is
            sampled.

    Raises:
        UserError: an option that is unknown or out of range.

    `shortened` are the numbers (from 1) of the texts of the last call that were too long, or held a sentence that was,
    and were cut by `long_sources`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        num_beams: int = 5,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        batch_tokens: int = 4_096,
        split: Split | None = None,
        long_sources: LongSources = "error",
        device: str | torch.device | None = None,
        compute: str = "float32",
        scores: bool = False,
        **generation: Any,
    ) -> None:
        self.model = model if device is None else model.to(device_of(device))
        self.tokenizer = tokenizer
        is_of_documents = tokenizer.init_kwargs.get("text_unit") == DOCUMENT
        self._usual_split: Split = "none" if is_of_documents else "sentences"
        self.options = Options(
            positions=getattr(model.config, "max_position_embeddings", None),
            split=split or self._usual_split,
            num_beams=num_beams,
            length_penalty=length_penalty,
            max_new_tokens=max_new_tokens,
            batch_tokens=batch_tokens,
            long_sources=long_sources,
            compute=compute,
            scores=scores,
            generation=generation,
        )
        self._fast: dict[str, tuple[Any, FastTranslationModel]] = {}  # by the type it computes in
        self._said: str | None = None
        self._computed: str | None = None
        self.shortened: list[int] = []
        self.moses = MosesStep.from_tokenizer(tokenizer)

    @classmethod
    def from_pretrained(
        cls,
        path_or_hub_id: str | Path,
        *,
        device: str | torch.device | None = None,
        attn_implementation: str | None = None,
        **options: Any,
    ) -> Translator:
        """A translator from a run folder, a checkpoint, a model that comes with the package, or a Hub repository.

        Args:
            path_or_hub_id: see `load_model_and_tokenizer`.
            device: None takes the GPU if CUDA has one, else the CPU.
            attn_implementation: how attention is computed; None takes the model's default.
            options: of the constructor.

        Raises:
            UserError: see `load_model_and_tokenizer` and the constructor.
        """
        from reluformer.translating.loading import load_model_and_tokenizer

        device = device_of(device)  # first: loading can take minutes
        settings = {"dtype": torch.float32} if device.type == "cpu" else {}  # in bfloat16 a CPU is slower
        model, tokenizer = load_model_and_tokenizer(path_or_hub_id, attn_implementation=attn_implementation, **settings)
        return cls(model, tokenizer, device=device, **options)

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings that decide what is translated, to stand beside scores; of `compute`, the type that the last
        call used."""
        return replace(self.options, compute=self._computed or self.options.compute).decoding

    @overload
    def __call__(self, texts: str, progress: bool = False, **options: Any) -> Translation: ...
    @overload
    def __call__(self, texts: Iterable[str], progress: bool = False, **options: Any) -> list[Translation]: ...
    def __call__(
        self, texts: str | Iterable[str], progress: bool = False, **options: Any
    ) -> Translation | list[Translation]:
        """Translates one text to a text, or several to a list in the same order; with `scores`, to a
        `ScoredTranslation` each.

        White space alone is not given to the model: it stays as it is or, with `split` "none", becomes "".

        Args:
            texts: a text or any iterable of texts, a generator too; it is read to its end first.
            progress: show a progress bar.
            options: of the constructor, for this call alone; not its device.

        Raises:
            UserError: a source is not text; sources that are too long, with `long_sources` "error"; see the
                constructor.
        """
        chosen, several = self._chosen(options), [texts] if isinstance(texts, str) else texts
        sources = self._encode(several, chosen)
        translations = list(self._translations(sources, [range(len(sources))], progress, chosen))
        return translations[0] if isinstance(texts, str) else translations

    def stream(self, texts: Iterable[str], progress: bool = False) -> Iterator[Translation]:
        """As a call, but some batches of texts at a time, whose translations can be used before all are done.

        All texts are checked before this returns.
        """
        sources = self._encode(texts, self.options)
        return self._translations(sources, self._parts(sources), progress, self.options)

    def with_options(self, **options: Any) -> Translator:
        """One with the same model and other options of the constructor, but for its device."""
        changed = copy.copy(self)  # with the same packed weights
        changed.options = self._chosen(options)
        return changed

    def limit(self, source_tokens: int) -> int:
        """The most target tokens, `</s>` included, for a source of `source_tokens` tokens."""
        return self.options.limit(source_tokens)

    def _chosen(self, options: Mapping[str, Any]) -> Options:
        """The translator's options with those of a call in their place."""
        if "split" in options and options["split"] is None:
            options = {**options, "split": self._usual_split}
        return self.options.changed(options) if options else self.options

    def _encode(self, texts: Iterable[str], options: Options) -> list[Source]:
        """The token ids of each text; sets `shortened`."""
        if isinstance(texts, Mapping):  # as a row of a data set; its keys would be translated
            raise UserError(f"texts: expected a text or several, got {type(texts).__name__}; give its values")
        texts = list(texts)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise UserError(f"texts[{index}]: expected a text, got {type(text).__name__}")
            if not is_unicode(text):
                raise UserError(f"texts[{index}]: {text!r} has a lone surrogate; read it again as UTF-8")
        language = source_language(self.tokenizer)
        encoder = SourceEncoder(
            self.tokenizer, options.positions, options.long_sources, self.moses, options.split, language
        )
        sources, self.shortened = encoder.encode(texts)
        return sources

    def _parts(self, sources: list[Source]) -> Iterator[range]:
        """Ranges of texts that fill `_BATCHES_AT_ONCE` batches."""
        start = tokens = 0
        for index, source in enumerate(sources):
            tokens += sum(len(ids) for pieces in source.units for ids in pieces)
            if tokens >= _BATCHES_AT_ONCE * self.options.batch_tokens:
                yield range(start, index + 1)
                start, tokens = index + 1, 0
        yield range(start, len(sources))

    def _translations(
        self, sources: list[Source], parts: Iterable[range], progress: bool, options: Options
    ) -> Iterator[Translation]:
        """The translations of one part after the other. Inference mode never reaches the caller, who goes on between
        two texts."""
        total = sum(len(source.units) for source in sources)
        unit = " sentences" if options.split == "sentences" else " texts"
        cut = 0
        with self._evaluation_mode():
            fast = self._fast_model(total, options) if total else None
        with tqdm(total=total, desc="translating", unit=unit, disable=None if progress else True) as bar:
            for part in parts:
                pieces = _pieces(sources, part)
                translated: dict[_Key, str] = {}
                scores: dict[_Key, _Score] = {}
                for keys in self._batches(pieces, options):
                    with self._evaluation_mode():
                        batch = self._generate([pieces[key] for key in keys], options, fast)
                    texts = self.tokenizer.batch_decode(batch.ids, skip_special_tokens=True)
                    translated |= zip(keys, texts if self.moses is None else self.moses.undo(texts), strict=True)
                    scores |= zip(keys, batch.scores, strict=True) if options.scores else {}
                    cut += batch.unfinished
                    bar.update(sum(piece == 0 for _, _, piece in keys))  # what was cut into pieces counts once
                for index in part:
                    counts = enumerate(map(len, sources[index].units))
                    units = [[(index, unit, piece) for piece in range(count)] for unit, count in counts]
                    text = sources[index].joined([" ".join(translated[key] for key in keys) for keys in units])
                    yield (
                        self._scored(text, [scores[key] for keys in units for key in keys]) if options.scores else text
                    )
        if cut:
            pieces_in_all = sum(len(unit) for source in sources for unit in source.units)
            logger.warning(
                "%d of %d translations were cut: they reached the limit of max_new_tokens.", cut, pieces_in_all
            )

    @staticmethod
    def _scored(text: str, scores: list[_Score]) -> ScoredTranslation:
        tokens = sum(score.tokens for score in scores)
        total = sum(score.log_probability for score in scores)
        return ScoredTranslation(text, total / tokens if tokens else math.nan)

    @staticmethod
    def _batches(encoded: dict[_Key, list[int]], options: Options) -> Iterator[list[_Key]]:
        """Keys of one batch after the other, the longest sources first: if memory runs out, then at once."""
        batch: list[_Key] = []
        longest = 0
        for key in sorted(encoded, key=lambda key: len(encoded[key]), reverse=True):
            length = len(encoded[key])
            full = (len(batch) + 1) * longest > options.batch_tokens
            if batch and (full or options.limit(length) != options.limit(longest)):
                yield batch
                batch = []
            if not batch:
                longest = length
            batch.append(key)
        if batch:
            yield batch

    def _generate(self, sources: list[list[int]], options: Options, fast: FastTranslationModel | None) -> _Batch:
        """Translations of a batch, by the compiled model where there is one, else by `generate`."""
        limit = options.limit(max(map(len, sources)))
        if fast is not None:
            results = fast.translate(sources, Search(options.num_beams, limit, options.length_penalty), options.scores)
            ids = pad_sequence(
                [torch.tensor([fast.start, *each.ids]) for each in results], True, self.tokenizer.pad_token_id
            )
            scores = [_Score(each.log_probability, len(each.ids)) for each in results] if options.scores else []
            return _Batch(ids, sum(each.ids[-1] != fast.end for each in results), scores)
        padded = self.tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(self.model.device)
        output = self.model.generate(
            input_ids=padded["input_ids"],
            attention_mask=padded["attention_mask"],
            num_beams=options.num_beams,
            # generate() warns about a length penalty that greedy decoding cannot use.
            length_penalty=options.length_penalty if options.num_beams > 1 else None,
            max_new_tokens=limit,
            max_length=None,  # of a converted checkpoint: generate() warns about two limits
            return_dict_in_generate=True,
            output_scores=options.scores,
            **{"do_sample": False, **options.generation},
        )
        ids = output.sequences
        generated = ids[:, 1:]  # without the start token
        ends = self.model.generation_config.eos_token_id
        scores = self._scores_of(output, ends) if options.scores else []
        if ends is None or generated.shape[1] < limit:
            return _Batch(ids, 0, scores)
        # A model with a forced end ends every translation at the limit, wherever it was.
        before = generated[:, :-1] if self.model.generation_config.forced_eos_token_id is not None else generated
        finished = torch.isin(before, torch.as_tensor(ends, device=ids.device)).any(dim=1)
        return _Batch(ids, int((~finished).sum()), scores)

    def _scores_of(self, output: Any, ends: Any) -> list[_Score]:
        """The scores of what `generate` returned, each up to the first token that ends its translation."""
        generated = output.sequences[:, 1:]
        of_tokens = self.model.compute_transition_scores(
            output.sequences, output.scores, getattr(output, "beam_indices", None), normalize_logits=True
        )
        counted = torch.ones_like(generated, dtype=torch.bool)
        if ends is not None:
            is_end = torch.isin(generated, torch.as_tensor(ends, device=generated.device))
            counted = is_end.cumsum(dim=1) - is_end.long() == 0
        sums = of_tokens.where(counted, torch.zeros_like(of_tokens)).sum(dim=1)
        return [_Score(*each) for each in zip(sums.tolist(), counted.sum(dim=1).tolist(), strict=True)]

    def _fast_model(self, sentences: int, options: Options) -> FastTranslationModel | None:
        """What computes a call, made anew when the weights have changed; None: `generate` does.

        The library is built for it if there are enough sentences to gain from it.
        """
        reason = reason_against(self.model, {**self.model.generation_config.to_diff_dict(), **options.generation})
        if reason is None and library(large=sentences >= _WORTH_BUILDING) is None:
            reason = "there is no compiled library"
        if reason is not None:
            self._computed = "float32"
            instead = "" if options.compute == "float32" else f" in float32, not {options.compute}"
            self._say(f"translated by `generate`{instead}: {reason}.", options)
            return None
        self._computed = options.compute
        state = _state_of(self.model)
        made_of, fast = self._fast.get(self._computed, (None, None))
        if made_of != state:
            fast = FastTranslationModel(self.model, self._computed)
            self._fast[self._computed] = state, fast
        return fast

    def __getstate__(self) -> dict[str, Any]:
        # for copy.deepcopy, and for pickle in other processes: what is compiled is made again at the next call
        return {**vars(self), "_fast": {}}

    def _say(self, line: str, options: Options) -> None:
        """Once; quietly where `generate` is the usual way, on a GPU and for exported models, and nothing else was asked
        for."""
        is_usual = self.model.device.type != "cpu" or getattr(self.model, "is_exported", False)
        if line != self._said:
            logger.log(logging.INFO if is_usual and options.compute == "float32" else logging.WARNING, line)
            self._said = line

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.model.train(training)


@torch.no_grad()
def _state_of(model: PreTrainedModel) -> list[tuple]:
    """What a `FastTranslationModel` copies of a model: it differs as soon as one of these has changed."""
    config, generation, weights = model.config, model.generation_config, [*model.parameters(), *model.buffers()]
    versions = [(weight.data_ptr(), None if weight.is_inference() else weight._version) for weight in weights]
    # A tensor of inference mode counts no changes, and neither a fused optimizer nor PEFT's merging tells of any. To
    # add up all weights would take too long: of a matrix, one number of each of up to 32 rows.
    vectors = [weight for weight in weights if weight.dim() == 1]
    columns = [weight[:: len(weight) // 32 + 1, 0] for weight in weights if weight.dim() == 2]
    total = float(torch.cat([torch.empty(0), *vectors, *columns]).double().sum())
    scales = config.attention_scaling, config.attention_gamma, config.attention_alpha
    return [*versions, (total, scales, generation.eos_token_id, generation.decoder_start_token_id)]


def _pieces(sources: list[Source], part: range) -> dict[_Key, list[int]]:
    """The token ids of every piece of some texts."""
    return {
        (index, unit, piece): ids
        for index in part
        for unit, pieces in enumerate(sources[index].units)
        for piece, ids in enumerate(pieces)
    }


def device_of(name: str | torch.device | None) -> torch.device:
    """The device of that name, or for None a GPU if CUDA has one, else the CPU.

    Raises:
        UserError: no name of a device, or of one on which nothing can be computed here.
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name is None else name)
    except RuntimeError as error:
        raise UserError(f"device: {name!r} is no device; give cpu, cuda or cuda:1") from error
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # AssertionError: a torch without CUDA
        reason = one_line(str(error).partition("\n")[0])
        raise UserError(f"device: {name!r} was asked for, but cannot be used here: {reason}") from error
    return device
