"""The scripts of the page that need no browser, in Node: sentences of a text, limits of a translation, numbers of a
map."""

import json
import math
import random
import shutil
import subprocess

import pytest
import torch

from reluformer.hub_cards.space import STATIC
from reluformer.translating.options import LIMIT_OFFSET, LIMIT_STEP
from reluformer.translating.translation import Translator

from ..conftest import demo_tokenizer, tiny_model

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed (Debian: nodejs)")
PARAGRAPHS = [
    [
        "Liebes Tagebuch, heute war ein langer Tag.",
        "Draußen war es noch dunkel.",
        "„Wann kommst du?“, hat sie gefragt.",
    ],
    ["„Am 3. Oktober“, habe ich gesagt.", "Zum Glück hat mir Dr. Müller geholfen!", "Er mag z. B. Kuchen 🍰."],
    ["Um 8.30 Uhr war ich da.", "Warum regnet es immer?", "Ich bin müde …"],
]


@pytest.fixture(scope="module")
def in_node(tmp_path_factory):
    """Runs the body of a function of `given` and of everything that the scripts export, and returns what it returns."""
    folder = tmp_path_factory.mktemp("scripts")
    for script in ("sentences.js", "translation.js", "elements.js", "map.js"):
        shutil.copy(STATIC / script, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "run.js").write_text(
        "import { readFileSync } from 'node:fs';\n"
        "import * as sentences from './sentences.js';\n"
        "import * as translation from './translation.js';\n"
        "import * as map from './map.js';\n"
        "const [body, given] = JSON.parse(readFileSync(0));\n"
        "const scripts = { ...sentences, ...translation, ...map };\n"
        "const names = Object.keys(scripts);\n"
        "const found = new Function('given', ...names, body)(given, ...names.map((name) => scripts[name]));\n"
        "console.log(JSON.stringify(await found));\n"
    )

    def run(body, given):
        command = ["node", str(folder / "run.js")]
        done = subprocess.run(command, input=json.dumps([body, given]), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


# Sentences


@pytest.fixture(scope="module")
def pieces_of(in_node):
    def pieces(text, language="de", unit="sentence"):
        return in_node("return piecesOf(...given)", [text, language, unit])

    return pieces


@pytest.mark.parametrize("line_break", [" ", "\n", "\n\n", "\r\n", "\r\n\r\n\t"])
def test_a_diary_is_cut_into_its_sentences(line_break, pieces_of):
    text = line_break.join(" ".join(paragraph) for paragraph in PARAGRAPHS)
    found = [piece["text"] for piece in pieces_of(text + random.choice(["", "\n", " \n\n"])) if piece["text"]]
    assert found == [sentence for paragraph in PARAGRAPHS for sentence in paragraph]


def test_nothing_of_a_text_is_lost(pieces_of):
    parts = [*"aB1.!?…„“ \t", "\n", "\r\n", "🙂", "👩‍👧", "é", "。", "Dr. ", "3. ", "—"]
    for _ in range(5):
        text = "".join(random.choices(parts, k=random.randint(1, 200)))
        pieces = pieces_of(text)
        assert "".join(piece["before"] + piece["text"] + piece["after"] for piece in pieces) == text
        utf16 = text.encode("utf-16-le")  # positions in a browser count its units
        for piece in pieces:
            held = utf16[2 * piece["start"] : 2 * piece["end"]].decode("utf-16-le")
            assert held == piece["before"] + piece["text"] + piece["after"]
            assert piece["text"] == piece["text"].strip()
            assert bool(piece["text"]) == any(map(str.isalnum, held)), "what has no letter and no digit stays as it is"


@pytest.mark.parametrize(
    ("text", "language", "sentences"),
    [
        ("He is 27. She is 30.", "en", ["He is 27.", "She is 30."]),
        ("Mr. T. Smith came. We ate.", "en", ["Mr. T. Smith came.", "We ate."]),
        (
            "Mrs. Orr met Ms. Lee and Prof. Li in St. Ives. Good.",
            "en",
            ["Mrs. Orr met Ms. Lee and Prof. Li in St. Ives.", "Good."],
        ),
        ("Hr. Meier wohnt in Nr. Acht. Gut.", "de", ["Hr. Meier wohnt in Nr. Acht.", "Gut."]),
        ("Es ist der 3. Mai. Gut.", "de", ["Es ist der 3. Mai.", "Gut."]),
        ("Es war 1989. Sie kam.", "de", ["Es war 1989.", "Sie kam."]),
        ("Das kostet 50. Ich kaufe es.", "de", ["Das kostet 50.", "Ich kaufe es."]),
        ("Ich wohne im 3.\nOben ist es hell.", "de", ["Ich wohne im 3.", "Oben ist es hell."]),
        ("Ja. 🙂🙂 Nein!", "de", ["Ja.", "🙂🙂 Nein!"]),
        ("Ja.\n- - -\nNein.", "de", ["Ja.", "Nein."]),
        ("你好。再见。", "zh", ["你好。", "再见。"]),
        ("Eins. Zwei.", None, ["Eins.", "Zwei."]),
        ("Eins. Zwei.", "the language of the source", ["Eins.", "Zwei."]),
        ("", "de", []),
        (" \r\n ", "de", []),
    ],
)
def test_sentences(text, language, sentences, pieces_of):
    assert [piece["text"] for piece in pieces_of(text, language) if piece["text"]] == sentences


def test_a_text_for_a_model_of_documents_is_one_piece(pieces_of):
    assert pieces_of(" Eins. Zwei.\n\nDrei.\n", unit="document") == [
        {"start": 0, "end": 20, "before": " ", "text": "Eins. Zwei.\n\nDrei.", "after": "\n"}
    ]
    assert pieces_of("", unit="document") == []


def test_the_sentence_of_a_position_is_that_which_holds_it_or_stands_before_it(in_node):
    places = "return [...Array(given.length + 1).keys()].map((position) => pieceAt(piecesOf(given, 'de'), position))"
    assert in_node(places, "Ja. Nein.\n\n") == [0] * 4 + [1] * 8  # behind the last line break, too
    assert in_node(places, "\n\nJa.\n- -\nNein.") == [2] * 10 + [4] * 6  # before the first sentence: the first
    assert in_node(places, " \n") == [-1] * 3
    assert in_node(places, "") == [-1]


# Translation


def test_the_limit_of_a_translation_is_that_of_the_translator(in_node):
    for positions in (20, 64, 10**6):
        translator = Translator(tiny_model(max_position_embeddings=positions), demo_tokenizer(50))
        lengths = [1, LIMIT_STEP, LIMIT_STEP + 1, *random.sample(range(1, 500), 20)]
        settings = {"positions": positions, "limit": {"step": LIMIT_STEP, "offset": LIMIT_OFFSET}}
        limits = "return given[1].map((n) => new TranslationModel(0, 0, 0, 0, given[0]).limit(n))"
        assert in_node(limits, [settings, lengths]) == [translator.limit(length) for length in lengths]


# A model of one head. Its encoder reads a token for each character, and its decoder writes 1, 2, 3, …, and then `end`.
_TRANSLATE = """
const { length, written, positions, until } = given;
class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } }
const ones = (rows, columns) => new Tensor("float32", new Float32Array(rows * columns).fill(1), [1, 1, rows, columns]);
const tokenizer = {
  encode: (text) => ({ ids: [...text].map(() => 5) }),
  decode: (ids) => ids.join(" "),
  id_to_token: (id) => (id === 9 ? undefined : `<${id}>`),
};
let steps = 0;
const encoder = {
  run: async ({ input_ids: { data } }) => ({ "encoder_attentions.0": ones(data.length, data.length) }),
};
const decoder = {
  inputNames: ["input_ids", "past_key_values.0.decoder.key"],
  run: async (feeds) => {
    const token = steps < written ? 1 + (steps % 8) : 9;
    steps += 1;
    const logits = { data: Float32Array.from({ length: 10 }, (_, id) => 900 + (id === token ? 1 / steps : 0)) };
    return { logits, "decoder_attentions.0": ones(1, steps), "cross_attentions.0": ones(1, length) };
  },
};
const settings = { start: 0, end: 9, heads: 1, headSize: 2, positions, limit: { step: 4, offset: 3 } };
const model = new TranslationModel({ Tensor }, tokenizer, encoder, decoder, settings);
return model.translate("a".repeat(length), async () => steps < until).then(
  (found) => found && { ...found, attentions: null, rows: found.attentions.decoder[0][0].map((row) => row.length) },
  (error) => ({ error: error.message, known: error instanceof TooLong }),
);
"""


def test_a_translation_ends_with_its_last_token_or_at_the_limit(in_node):
    length = random.randint(1, 20)
    limit = 2 * -(-length // 4) * 4 + 3
    for written in (0, random.randrange(limit), limit - 1, limit, limit + 5):
        given = {"length": length, "written": written, "positions": 100, "until": 1000}
        found = in_node(_TRANSLATE, given)
        target = [f"<{1 + step % 8}>" for step in range(min(written, limit))] + ["[9]"] * (written < limit)
        assert found["target"] == target
        assert found["cut"] == (written >= limit)
        assert found["source"] == ["<5>"] * length and found["start"] == "<0>"
        assert found["rows"] == [1 + step for step in range(len(target))]
        # one logit of ten is larger than the others, by 1, 1/2, 1/3, …
        each = [-math.log(1 + 9 * math.exp(-1 / (1 + step))) for step in range(len(target))]
        assert found["logProbability"] == pytest.approx(sum(each) / len(each), abs=1e-4)  # of 900 float32 keeps 3e-5


def test_a_translation_that_is_no_longer_wanted_ends_and_a_text_that_is_too_long_is_refused(in_node):
    given = {"length": 8, "written": 9, "positions": 8, "until": 1000}
    assert in_node(_TRANSLATE, given)["cut"], "a text may have as many tokens as the model has positions"
    assert in_node(_TRANSLATE, given | {"until": 3}) is None
    refused = in_node(_TRANSLATE, given | {"length": 9})
    assert refused == {"error": "it has 9 tokens; the model reads 8 at most. Shorten it.", "known": True}


# The numbers of a map


@pytest.mark.parametrize("ragged", [False, True])
def test_the_numbers_of_a_map(ragged, in_node):
    queries, keys = 12, 7
    rows = [torch.rand(1 + query if ragged else keys).sub(0.4).relu() * 3 for query in range(queries)]
    rows[random.randrange(queries)].zero_()
    found = in_node("return summary(given)", [row.tolist() for row in rows])
    weights, sums = torch.cat(rows), torch.stack([row.sum() for row in rows])
    # a row of zeros has no distribution, and counts as 0
    entropies = [torch.special.entr(row / row.sum()).sum() for row in rows if row.sum() > 0]
    assert found == pytest.approx(
        {
            "zeros": float((weights == 0).float().mean()),
            "dead": float((sums == 0).float().mean()),
            "sum": float(sums.mean()),
            "entropy": float(torch.stack(entropies).sum() / queries),
        },
        rel=1e-5,  # float32 sums of at most 12 × 12 numbers of one sign: 144 · 6e-8
    )


def test_negative_weights_have_no_entropy(in_node):
    found = in_node("return summary(given)", [[0.5, -1.0], [0.0, 0.5]])
    assert found == {"zeros": 0.25, "dead": 0.0, "sum": 0.0, "entropy": None}


_WALK = """
const map = Object.create(AttentionMap.prototype);
map.result = { attentions: { cross: given.heads.map((count) => Array(count)) } };
map.place = { kind: 'cross', layer: given.layer, head: given.head };
map.choose = (place) => { map.place = place; };
let kept = 0;
for (const key of given.keys) map.step({ key, preventDefault: () => { kept += 1; } });
return { ...map.place, kept };
"""


def test_arrow_keys_walk_around_the_heads_and_layers_and_the_page_does_not_scroll(in_node):
    heads = [random.randrange(2, 5)] * random.randrange(2, 5)
    layer, head = random.randrange(len(heads)), random.randrange(heads[0])
    given = {"heads": heads, "layer": layer, "head": head}
    start = {"kind": "cross", "layer": layer, "head": head}
    for key, moved in {
        "ArrowRight": {"head": (head + 1) % heads[0]},
        "ArrowLeft": {"head": (head - 1) % heads[0]},
        "ArrowDown": {"layer": (layer + 1) % len(heads)},
        "ArrowUp": {"layer": (layer - 1) % len(heads)},
    }.items():
        assert in_node(_WALK, {**given, "keys": [key]}) == start | moved | {"kept": 1}
    assert in_node(_WALK, {**given, "keys": ["Tab", "a"]}) == start | {"kept": 0}


@pytest.mark.parametrize(
    ("kind", "queries", "keys"),
    [
        ("cross", ["c", "-d", "</s>"], ["a", "-b", "</s>"]),
        ("encoder", ["a", "-b", "</s>"], ["a", "-b", "</s>"]),
        ("decoder", ["c", "-d", "</s>"], ["<s>", "c", "-d"]),  # which has read the start, and not its last token
    ],
)
def test_rows_and_columns_of_a_map_are_named_by_their_tokens(in_node, kind, queries, keys):
    body = """
    const part = { replaceChildren: () => {}, rows: [] };
    const map = Object.assign(Object.create(AttentionMap.prototype), { part, find: () => part });
    Object.assign(map, { map: () => {}, numbers: () => [], heads: () => [] });
    map.place = { kind: given, layer: 0, head: 0 };
    const tokens = { start: '<s>', source: ['▁a', 'b', '</s>'], target: ['▁c', 'd', '</s>'] };
    let drawn = 0;
    map.map = () => { drawn += 1; };
    const result = { ...tokens, attentions: { [given]: [[[]]] } };
    map.show(result);
    map.show(result, "Sentence 1 of 2: ");
    return { ...map.names, drawn };
    """
    assert in_node(body, kind) == {"queries": queries, "keys": keys, "drawn": 1}, "the same map is not drawn again"


@pytest.mark.parametrize(
    ("weight", "reading"), [("0", "“a” ignores “c”: exactly 0"), ("0.01234", "“a” reads “c”: 0.012")]
)
def test_a_cell_is_read_out_in_two_digits(in_node, weight, reading):
    body = """
    const shown = {};
    const map = { names: { queries: ['', 'a'], keys: ['b', '', 'c'] }, find: () => shown };
    AttentionMap.prototype.read.call(map, { dataset: { query: 1, key: 2, weight: given } });
    return shown.textContent;
    """
    assert in_node(body, weight) == reading


def test_a_map_opens_at_the_head_with_the_fewest_dead_rows_and_of_these_the_most_zeros(in_node):
    def head(dead, zeros):
        """Of 4 rows of 5 weights, as many without any weight, and as many zeros in another."""
        rows = torch.ones(4, 5)
        rows[:dead] = 0
        rows[3, :zeros] = 0
        return rows.tolist()

    opening = "return AttentionMap.prototype.opening.call({ result: { attentions: { cross: given } } })"
    layers = [[head(1, 4), head(0, 1)], [head(0, 3), head(2, 4)], [head(0, 3), head(0, 2)]]
    assert in_node(opening, layers) == {"kind": "cross", "layer": 1, "head": 0}  # the first of two that are equal
    assert in_node(opening, [[head(2, 1), head(2, 2)], [head(3, 4), head(2, 0)]]) == {
        "kind": "cross",
        "layer": 0,
        "head": 1,
    }
